package member

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// logBridge takes memberlist's log lines ("[WARN] memberlist: …") to slog, and counts
// from them the packets that memberlist dropped, which it tells in no other way. Lines above
// debug are limited, since a stranger can cause as many as he likes.
type logBridge struct {
	to      *slog.Logger
	dropped *atomic.Uint64

	mu         sync.Mutex
	window     time.Time // since when lines counts
	lines      int
	suppressed int
}

// At most maxBridgeLines lines in bridgeWindow.
const (
	maxBridgeLines = 10
	bridgeWindow   = 10 * time.Second
)

// droppedPhrases begin the lines in which memberlist v0.7.0 says that it threw away
// something from the network; a test sends such things and counts.
var droppedPhrases = []string{
	"Decrypt packet failed", "discarding packet with", "discarding stream with",
	"failed to receive", "cannot decode label", "label header cannot be empty", "unexpected double",
	"msg type (", "Received invalid msgType", "missing message type byte",
	"Failed to decode", "Failed to decompress", "Got invalid checksum",
	"Failed to read remote state", "Failed to receive user message", "UDP packet too short",
}

// quietPhrases begin lines that are no news: this package says them better, or they
// happen whenever a member restarts.
var quietPhrases = []string{
	"ignoring alive message", "Got ping for unexpected node", "Refuting", "Failed to send",
	"Failed fallback TCP ping", "Push/Pull with", "Stream connection", "Failed to join", "handler queue full",
	"Suspect ", "Marking ", "Failed push/pull merge",
}

// Write takes one line, as log.Logger writes them.
func (b *logBridge) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	level := slog.LevelInfo
	for prefix, l := range map[string]slog.Level{
		"[DEBUG] ": slog.LevelDebug, "[INFO] ": slog.LevelDebug, "[WARN] ": slog.LevelInfo,
		"[ERR] ": slog.LevelWarn, "[ERROR] ": slog.LevelWarn,
	} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			text, level = rest, l
			break
		}
	}
	text = strings.TrimPrefix(text, "memberlist: ")
	if hasPrefix(text, droppedPhrases) {
		b.dropped.Add(1)
	}
	if hasPrefix(text, quietPhrases) {
		level = slog.LevelDebug
	}
	if level > slog.LevelDebug && !b.allow(time.Now()) {
		return len(line), nil
	}
	b.to.Log(context.Background(), level, "gossip: "+text)
	return len(line), nil
}

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// allow reports whether one more line may be written now.
func (b *logBridge) allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.window) > bridgeWindow {
		if b.suppressed > 0 {
			b.to.Warn("gossip: lines left out", "lines", b.suppressed)
		}
		b.window, b.lines, b.suppressed = now, 0, 0
	}
	if b.lines >= maxBridgeLines {
		b.suppressed++
		return false
	}
	b.lines++
	return true
}
