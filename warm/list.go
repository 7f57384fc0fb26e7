package warm

import (
	"bufio"
	"errors"
	"io"
	"strings"
)

// byteOrderMark is what some editors put before text.
const byteOrderMark = "\ufeff"

// ReadList reads a list of names, a line each as [ParseLine] has it, and calls each with those that name
// something. Errors of the list are of type [*UsageError] and say which line it is; others are those of
// reading, or of each.
func ReadList(r io.Reader, each func(Source) error) error {
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 0, maxLineBytes), maxLineBytes)
	line, count := 0, 0
	for scan.Scan() {
		line++
		text := scan.Text()
		if line == 1 {
			text = strings.TrimPrefix(text, byteOrderMark)
		}
		src, err := ParseLine(text)
		if err != nil {
			return usagef("line %d: %v", line, err)
		}
		if src == nil {
			continue
		}
		if count++; count > MaxObjects {
			return usagef("there are more than %d names: give them in several parts", MaxObjects)
		}
		if err := each(*src); err != nil {
			return err
		}
	}
	if errors.Is(scan.Err(), bufio.ErrTooLong) {
		return usagef("line %d: is longer than %d bytes", line+1, maxLineBytes)
	}
	return scan.Err()
}
