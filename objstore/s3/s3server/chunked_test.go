package s3server

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

func FuzzChunks(f *testing.F) {
	f.Add("5;chunk-signature=ab\r\nhello\r\n0;chunk-signature=cd\r\n\r\n")
	f.Add("3\r\nabc\r\n1\r\nd\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n")
	f.Add("-1\r\n")
	f.Add("ffffffffffffffffff\r\n")
	f.Add("5\r\nhel")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := io.ReadAll(&chunkReader{r: bufio.NewReader(strings.NewReader(s))})
		if len(got) > len(s) {
			t.Errorf("%d bytes of %d", len(got), len(s))
		}
		if err == nil && !strings.Contains(s, "0") {
			t.Error("no end, and no error")
		}
	})
}

func TestChunks(t *testing.T) {
	for body, want := range map[string]string{
		"5;chunk-signature=ab\r\nhello\r\n0;chunk-signature=cd\r\n\r\n": "hello",
		"3\r\nabc\r\n1\r\nd\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n":  "abcd",
		"0\r\n\r\n": "",
	} {
		if got, err := io.ReadAll(&chunkReader{r: bufio.NewReader(strings.NewReader(body))}); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", body, got, err)
		}
	}
	for _, body := range []string{"", "5\r\nhel", "5\r\nhelloX\r\n0\r\n\r\n", "x\r\n", "-5\r\nhello"} {
		if got, err := io.ReadAll(&chunkReader{r: bufio.NewReader(strings.NewReader(body))}); err == nil {
			t.Errorf("%q: %q, no error", body, got)
		}
	}
}
