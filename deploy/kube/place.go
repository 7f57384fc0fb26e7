package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

// Place says which labels of a node are its zone and its rack; "" for none.
type Place struct {
	ZoneLabel, RackLabel string
}

// maxPlaceBytes is what a zone or rack may have as an option.
const maxPlaceBytes = 63

// Config copies a configuration file and adds zone and rack from the labels of a
// node, for those that it has. While the API server does not answer it tries again until wait is
// over; then, and when it refuses, the file is copied as it is and a line says so: copies that cross
// zones are better than a node that does not start.
func (p Place) Config(ctx context.Context, c *Client, name, in, out string, wait time.Duration, log *slog.Logger) error {
	text, err := readConfig(in)
	if err != nil {
		return err
	}
	labels, err := p.labels(ctx, c, name, wait)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		log.Warn("kube: goes on without zone and rack", "node", name, "err", err)
	}
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	for _, l := range [...]struct{ option, label string }{{"zone", p.ZoneLabel}, {"rack", p.RackLabel}} {
		value := labels[l.label]
		if l.label == "" || value == "" {
			continue
		}
		if len(value) > maxPlaceBytes {
			return fmt.Errorf("label %s of node %s is longer than %d bytes", l.label, name, maxPlaceBytes)
		}
		line, err := yaml.Marshal(map[string]string{l.option: value})
		if err != nil {
			return err
		}
		text = append(text, line...)
		log.Info("kube: read from a label", l.option, value, "label", l.label)
	}
	return writeWhole(out, text)
}

// labels asks until there is an answer, a refusal, or wait is over.
func (p Place) labels(ctx context.Context, c *Client, name string, wait time.Duration) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var last error
	for {
		labels, err := c.Labels(ctx, name)
		if err == nil || Final(err) {
			return labels, err
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err // the end of the wait says less than what was wrong before
		}
		t := time.NewTimer(firstPause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, last
		case <-t.C:
		}
	}
}

func readConfig(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(text) > maxConfigBytes {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxConfigBytes)
	}
	return text, err
}

// writeWhole makes a file that is there as a whole or not at all.
func writeWhole(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+strings.TrimPrefix(filepath.Base(name), ".")+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(0o444), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), name)
}
