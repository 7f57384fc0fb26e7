package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progressInterval is how often a line tells how far work is, where there is no terminal.
const progressInterval = 5 * time.Second

// meter shows how far work is that is counted in bytes: by a bar on a terminal, by lines elsewhere. It is for one
// goroutine.
type meter struct {
	out         io.Writer
	what        string // of the bytes done: "handed on"
	bars        *mpb.Progress
	bar         *mpb.Bar
	began, next time.Time
}

func newMeter(out io.Writer, what string) *meter {
	m := &meter{out: out, what: what, began: time.Now(), next: time.Now().Add(progressInterval)}
	if f, ok := out.(*os.File); ok && hasRoom(f) {
		m.bars = mpb.New(mpb.WithOutput(f), mpb.WithWidth(48))
	}
	return m
}

// draw draws the bar.
func (m *meter) draw(done, total int64) {
	if m.bar == nil {
		m.bar = m.bars.AddBar(0,
			mpb.PrependDecorators(decor.Name(m.what, decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f", decor.WCSyncSpace)),
			mpb.AppendDecorators(decor.NewPercentage("%d", decor.WCSyncSpace), decor.AverageSpeed(decor.SizeB1024(0), "% .1f", decor.WCSyncSpace),
				decor.AverageETA(decor.ET_STYLE_GO, decor.WCSyncSpace)))
	}
	m.bar.SetTotal(total, false)
	m.bar.SetCurrent(done)
}

// set says how much is done, and of how much.
func (m *meter) set(done, total int64) {
	now := time.Now()
	switch {
	case total <= 0: // not known yet, or nothing to do
	case m.bars != nil:
		m.draw(done, total)
	case now.After(m.next):
		m.next = now.Add(progressInterval)
		rate := float64(done) / now.Sub(m.began).Seconds()
		left := time.Duration(float64(max(0, total-done)) / max(1, rate) * float64(time.Second))
		fmt.Fprintf(m.out, "%s of %s %s, %s/s, %v left\n", size(done), size(total), m.what, size(int64(rate)), left.Round(time.Second))
	}
}

// stop ends the bar, so that lines can follow.
func (m *meter) stop() {
	if m.bar != nil {
		m.bar.Abort(false)
	}
	if m.bars != nil {
		m.bars.Wait()
	}
}
