package disk

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// ReadNote returns a small file of the directory, as [Dir.WriteNote] left it: at most maxBytes, more
// is an error. Like every call it comes back within [Config.CallTimeout].
func (d *Dir) ReadNote(name string, maxBytes int64) ([]byte, error) {
	f, err := d.fs.OpenFile(d.path(name), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size > maxBytes {
		return nil, fmt.Errorf("read %s: %d bytes, at most %d", name, st.Size, maxBytes)
	}
	buf := make([]byte, st.Size)
	n, err := f.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	return buf[:n], nil
}

// WriteNote replaces a small file that others keep in the directory: it is the old one or the
// new one after a kill, the old, the new or a damaged one after a power cut. Whoever reads it
// must see what is damaged.
func (d *Dir) WriteNote(name string, data []byte) error {
	temp := d.path(name + tempSuffix)
	f, err := d.fs.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = d.fs.Rename(temp, d.path(name))
	}
	if err != nil {
		_ = d.fs.Remove(temp)
	}
	return err
}

// readSmall returns a text file without its last newline.
func (d *Dir) readSmall(name string) (string, error) {
	text, err := d.ReadNote(name, maxSmallFileBytes)
	return strings.TrimSuffix(string(text), "\n"), err
}

// writeSmall replaces a text file.
func (d *Dir) writeSmall(name, text string) error { return d.WriteNote(name, []byte(text+"\n")) }
