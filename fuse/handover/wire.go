package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// wireVersion is the first byte of every message. The keeper of one version serves
// daemons of others: what may have to change lies in areas, which it does not read.
const wireVersion = 1

// Bounds of the protocol.
const (
	maxTexts     = 3
	maxTextBytes = 8 << 10 // a path, a URI
	headerBytes  = 2 + 4 + 8
	maxMessage   = headerBytes + maxTexts*(2+maxTextBytes)
	maxFiles     = 3 // of one message
	sendPatience = 5 * time.Second
)

// operation is what a message is about.
type operation uint8

// The first of a server; what a keeper answers comes last.
const (
	opHello   operation = 1 + iota // texts: name of the server
	opLook                         // asks for all sessions, without the kernel's ends
	opClaim                        // asks to be the one server; n: 1 tells the present one to end
	opMount                        // n: flags; texts: directory, source, options; files: area, listings
	opDeposit                      // texts: directory, device; files: kernel's end, area, listings
	opServing                      // id
	opDrop                         // id
	opDone                         // answer: id; n: sessions that follow
	opFailed                       // answer; texts: why
	opSession                      // id; texts: directory, device; files as in deposit, or without the kernel's end
	opYield                        // unasked: another server wants to take over
)

// message is one packet. Whoever receives it owns the files.
type message struct {
	op    operation
	n     uint32
	id    uint64
	texts []string
	files []int
}

func (m *message) text(i int) string {
	if i < len(m.texts) {
		return m.texts[i]
	}
	return ""
}

func (m *message) closeFiles() {
	for _, fd := range m.files {
		_ = unix.Close(fd)
	}
	m.files = nil
}

func (m *message) encode() ([]byte, error) {
	b := make([]byte, headerBytes, 256)
	b[0], b[1] = wireVersion, byte(m.op)
	binary.LittleEndian.PutUint32(b[2:], m.n)
	binary.LittleEndian.PutUint64(b[6:], m.id)
	for _, t := range m.texts {
		if len(t) > maxTextBytes {
			return nil, fmt.Errorf("a text of %d bytes: at most %d", len(t), maxTextBytes)
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(len(t)))
		b = append(b, t...)
	}
	return b, nil
}

var (
	errMessage = errors.New("message of another protocol")
	errFiles   = errors.New("files of a message did not arrive: too many are open")
)

func decode(b []byte) (message, error) {
	if len(b) < headerBytes || b[0] != wireVersion {
		return message{}, errMessage
	}
	m := message{op: operation(b[1]), n: binary.LittleEndian.Uint32(b[2:]), id: binary.LittleEndian.Uint64(b[6:])}
	for b = b[headerBytes:]; len(b) > 0; {
		if len(b) < 2 || len(m.texts) == maxTexts {
			return message{}, errMessage
		}
		n := int(binary.LittleEndian.Uint16(b))
		if n > maxTextBytes || len(b) < 2+n {
			return message{}, errMessage
		}
		m.texts = append(m.texts, string(b[2:2+n]))
		b = b[2+n:]
	}
	return m, nil
}

// packets is one end of a connection of packets with files.
type packets struct{ f *os.File }

// send sends a message; the files stay the caller's.
func (p packets) send(m message) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	var oob []byte
	if len(m.files) > 0 {
		oob = unix.UnixRights(m.files...)
	}
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	_ = p.f.SetWriteDeadline(time.Now().Add(sendPatience))
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN
	})
	if err == nil {
		err = sendErr
	}
	return err
}

// receive returns the next message, io.EOF when the other end is closed.
func (p packets) receive() (message, error) {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return message{}, err
	}
	b, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	var n, oobn, flags int
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, flags, _, recvErr = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
		return recvErr != unix.EAGAIN && recvErr != unix.EINTR
	})
	if err == nil {
		err = recvErr
	}
	if err != nil {
		return message{}, err
	}
	files, err := filesOf(oob[:oobn])
	m := message{files: files}
	switch {
	case err != nil:
	case n == 0 && len(files) == 0:
		err = io.EOF
	case flags&unix.MSG_CTRUNC != 0:
		err = errFiles
	case flags&unix.MSG_TRUNC != 0:
		err = errMessage
	default:
		if m, err = decode(b[:n]); err == nil {
			m.files = files
			return m, nil
		}
		m.files = files
	}
	m.closeFiles()
	return message{}, err
}

func filesOf(oob []byte) (all []int, err error) {
	controls, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, c := range controls {
		if fds, err := unix.ParseUnixRights(&c); err == nil {
			all = append(all, fds...)
		}
	}
	return all, nil
}
