package s3server

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// unchunk decodes uploads in "aws-chunked" before the server below sees them:
// gofakes3 does so for whole objects, not for parts of one, and not for uploads
// with trailers. Signatures and checksums of chunks are not checked.
func unchunk(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
			size := r.Header.Get("X-Amz-Decoded-Content-Length")
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil || n < 0 {
				http.Error(w, "X-Amz-Decoded-Content-Length is missing", http.StatusBadRequest)
				return
			}
			r.Body = struct {
				io.Reader
				io.Closer
			}{&chunkReader{r: bufio.NewReader(r.Body)}, r.Body}
			r.ContentLength = n
			r.Header.Set("Content-Length", size)
			r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
			r.Header.Del("Content-Encoding")
		}
		next.ServeHTTP(w, r)
	})
}

var errChunk = errors.New("malformed aws-chunked body")

// maxChunkLine bounds the line before a chunk, in bytes.
const maxChunkLine = 1024

// chunkReader yields what the chunks hold: each is a line "SIZE;attributes", in
// hexadecimal, its bytes and an empty line; one of size 0 is the last.
type chunkReader struct {
	r    *bufio.Reader
	left int64 // of the chunk
	tail bool  // the empty line of a chunk is due
	done bool
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for c.left == 0 {
		if c.done {
			return 0, io.EOF
		}
		if c.tail {
			if line, err := c.line(); err != nil || line != "" {
				return 0, errors.Join(errChunk, err)
			}
			c.tail = false
		}
		line, err := c.line()
		if err != nil {
			return 0, err
		}
		digits, _, _ := strings.Cut(line, ";")
		if c.left, err = strconv.ParseInt(digits, 16, 64); err != nil || c.left < 0 {
			return 0, errChunk
		}
		c.done, c.tail = c.left == 0, true
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.r.Read(p)
	c.left -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (c *chunkReader) line() (string, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil || len(line) > maxChunkLine {
		return "", errors.Join(errChunk, err)
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}
