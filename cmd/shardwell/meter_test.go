package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Where there is no terminal a line tells every five seconds how far work is, and nothing before it is known how much there is.
func TestMeterWritesLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		m := newMeter(&out, "checked")
		for second := range int64(12) {
			if second < 6 {
				m.set(0, 0)
			} else {
				m.set(second<<20, 20<<20)
			}
			time.Sleep(time.Second)
		}
		m.stop()
		if want := "6.0 MiB of 20 MiB checked, 1.0 MiB/s, 14s left\n"; out.String() != want {
			t.Errorf("wrote %q, want %q", out.String(), want)
		}
	})
}
