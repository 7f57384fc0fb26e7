package transfer

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// answer is one response on its way out.
type answer struct {
	server *Server
	w      http.ResponseWriter
	rc     *http.ResponseController
	proof  verified

	target string  // of the request
	asker  string  // ring id of the member that gets it
	could  float64 // bytes a second that could be sent, when the asker takes much less; else 0
	toldAt time.Time
	length int64 // of the body
	size   int64 // of the object

	// turn is held over w and what follows while the Lender is at work, by it or by the
	// timer: a lock that may be held while a write waits for the asker.
	turn  chan struct{}
	left  blockSet    // sent
	signs int         // of life, left to be sent after the answer began
	begun bool        // the status line is out
	wrote time.Time   // something last
	timer *time.Timer // nil when the time of life signs is over
	head  []byte      // reused
	frame fileFrame   // reused
}

// tellEvery is how often an asker is told that it is slow, with at most half of the signs.
const tellEvery = time.Second

// begin writes the status line and headers, bound to the request by a proof.
func (a *answer) begin(status int, extra map[string]string) {
	h := a.w.Header()
	for k, v := range extra {
		h[k] = []string{v}
	}
	if p := a.proof.prove(strconv.Itoa(status), h.Get(headerError), h.Get(headerRedirect), h.Get("Content-Length")); p != "" {
		h[headerProof] = []string{p}
	}
	// A deadline of an earlier answer on this connection may have passed.
	a.setDeadline()
	a.w.WriteHeader(status)
}

// fail answers with an error's class, and its text for people.
func (a *answer) fail(err error) {
	class, status := ClassOf(err)
	text := err.Error()
	if len(text) > maxMessageBytes {
		text = text[:maxMessageBytes]
	}
	extra := map[string]string{headerError: class, "Content-Length": strconv.Itoa(len(text))}
	if class == "busy" {
		extra["Retry-After"] = strconv.FormatFloat(a.server.cfg.RetryAfter.Seconds(), 'f', 3, 64)
	}
	a.begin(status, extra)
	_, _ = a.w.Write([]byte(text)) // the asker may have gone: nothing to do about it
}

// redirect answers with the name of another member. No client follows the status
// by itself.
func (a *answer) redirect(member string) {
	a.begin(http.StatusMisdirectedRequest, map[string]string{headerRedirect: member, "Content-Length": "0"})
}

// signLife tells the asker now and then that its request is being worked on,
// until endLife: by interim answers before the first block, by frames without a block after it.
func (a *answer) signLife() {
	every := a.server.cfg.LifeSign
	a.lock()
	defer a.unlock()
	a.signs, a.wrote = Signs, time.Now()
	a.timer = time.AfterFunc(every, func() {
		a.lock()
		defer a.unlock()
		if a.timer == nil {
			return
		}
		if wait := every - time.Since(a.wrote); wait > 0 {
			a.timer.Reset(wait)
			return
		}
		a.setDeadline()
		switch {
		case !a.begun:
			a.w.WriteHeader(http.StatusProcessing)
		case a.signs == 0:
			return // the asker's patience ends with ours
		default:
			a.signs--
			// An error here is one for the next block as well.
			_, _ = a.w.Write(sign.Append(a.head[:0]))
			_ = a.rc.Flush()
		}
		a.wrote = time.Now()
		a.timer.Reset(every)
	})
}

func (a *answer) lock()   { a.turn <- struct{}{} }
func (a *answer) unlock() { <-a.turn }

// setDeadline gives what is written next its time to leave.
func (a *answer) setDeadline() {
	_ = a.rc.SetWriteDeadline(time.Now().Add(a.server.cfg.StallTimeout))
}

// endLife stops the life signs and reports whether the answer has begun.
func (a *answer) endLife() bool {
	a.lock()
	defer a.unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	return a.begun
}

// send is what the Lender calls for each block.
func (a *answer) send(p chunk.Piece) error {
	a.lock()
	defer a.unlock()
	g := a.server.cfg.Geometry
	if p.Len != g.BlockLen(a.size, p.Index) || (p.File == nil && len(p.Data) != p.Len) || !a.left.add(p.Index) {
		return fmt.Errorf("lender gave block %d of %d bytes for %v", p.Index, p.Len, a.left.span)
	}
	if !a.begun {
		a.begun = true
		a.begin(http.StatusOK, map[string]string{headerAnswers: a.target, "Content-Length": strconv.FormatInt(a.length, 10)})
	}
	a.setDeadline()
	head := a.head[:0]
	if now := time.Now(); a.could > 0 && a.signs > Signs/2 && now.Sub(a.toldAt) >= tellEvery {
		head = slowSign(a.could).Append(head)
		a.signs--
		a.toldAt = now
	}
	if a.left.full() {
		for ; a.signs > 0; a.signs-- {
			head = sign.Append(head)
		}
	}
	a.head = FrameHeader{Block: p.Index, Length: uint32(p.Len), CRC: p.CRC}.Append(head)
	pace := a.server.pace
	pace.begin(a.asker, time.Now())
	err := a.sendPiece(p)
	a.wrote = time.Now()
	a.could = pace.end(a.asker, int64(p.Len), a.wrote)
	return err
}

func (a *answer) sendPiece(p chunk.Piece) error {
	st := a.server.cfg.Stats
	if p.File == nil {
		if err := a.sendData(a.head, p.Data); err != nil {
			return err
		}
		st.CopiedBytes.Add(int64(p.Len))
	} else {
		a.frame = fileFrame{head: a.head, file: p.File, off: p.Offset, n: int64(p.Len)}
		if err := a.sendFile(); err != nil {
			return err
		}
		st.SendfileBytes.Add(a.frame.bySys)
		st.CopiedBytes.Add(int64(p.Len) - a.frame.bySys)
		if a.frame.bySys > 0 {
			st.SendfileCalls.Add(1)
		}
	}
	st.SentBlocks.Add(1)
	st.SentBytes.Add(int64(p.Len))
	return nil
}

// sendData writes header and bytes, and sees them off: a block that waits in a
// buffer helps nobody.
func (a *answer) sendData(head, data []byte) error {
	if _, err := a.w.Write(head); err != nil {
		return err
	}
	if _, err := a.w.Write(data); err != nil {
		return err
	}
	if a.left.full() {
		return nil // the end of the handler flushes
	}
	return a.rc.Flush()
}

// sendFile hands the frame to the connection as it is: response.ReadFrom passes
// its source on to the connection's own ReadFrom once the headers are out.
func (a *answer) sendFile() error {
	rf, ok := a.w.(io.ReaderFrom)
	if !ok {
		rf = readerFrom{a.w}
	}
	want := a.frame.n + int64(len(a.frame.head))
	n, err := rf.ReadFrom(&a.frame)
	if err == nil && n != want {
		err = io.ErrShortWrite
	}
	return err
}

// readerFrom is for writers in tests that are no connections.
type readerFrom struct{ io.Writer }

func (w readerFrom) ReadFrom(src io.Reader) (int64, error) {
	return io.Copy(w.Writer, struct{ io.Reader }{src})
}
