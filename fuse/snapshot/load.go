package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/shardwell/shardwell/fuse/tree"
)

var errDamaged = errors.New("damaged record")

// load maps the log and reads its records up to the first that was not finished.
func (s *Store) load(identity string, now time.Time) error {
	var segments [][]byte
	take := func(f *os.File, from int64) (int64, error) {
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		if info.Size()-from > maxLogBytes {
			return 0, fmt.Errorf("%d bytes: %w", info.Size(), errDamaged)
		}
		n := int64(0)
		for ; from+(n+1)*segmentBytes <= info.Size(); n++ {
			m, err := mapSegment(f, from+n*segmentBytes)
			if err != nil {
				return n, err
			}
			segments = append(segments, m)
			s.segments.Store(&segments)
		}
		return n, nil
	}
	if s.file != nil {
		n, err := take(s.file, 0)
		s.onDisk = n
		if err != nil {
			return err
		}
	}
	if s.spill.File != nil {
		n, err := take(s.spill.File, s.spill.Offset)
		s.spilled = n
		if err != nil {
			return err
		}
	}
	s.lost = s.file == nil || s.spilled > 0
	if len(segments) == 0 {
		return fmt.Errorf("nothing in it: %w", errDamaged)
	}
	for all := int64(len(segments)) * segmentBytes; s.end < all; {
		n, err := s.loadRecord(identity)
		if err != nil {
			return fmt.Errorf("at byte %d: %w", s.end, err)
		}
		if rest := segmentBytes - s.end%segmentBytes; n == 0 && s.end+rest < all {
			n = rest // the disk did not answer there: the log went on in the next segment
		}
		if n == 0 {
			break
		}
		s.end += n
	}
	if s.dirs[rootSerial] == nil {
		return errDamaged
	}
	s.trustListings(now)
	// A record that was being written leaves bytes behind the end; the next must
	// find zeros where its own padding is.
	if rest := segmentBytes - s.end%segmentBytes; rest < segmentBytes && s.touch(s.end, rest) {
		clear(s.at(s.end))
	}
	return nil
}

// loadRecord reads the record at the end of what was read; 0 means that there is none.
func (s *Store) loadRecord(identity string) (int64, error) {
	b := s.at(s.end)
	n := int64(binary.LittleEndian.Uint32(b[offLength:]))
	switch {
	case n == 0:
		return 0, nil
	case n > int64(len(b)) || n%recordAlign != 0:
		return 0, errDamaged
	case n < headerBytes || b[offKind] == kindFiller:
		if n != int64(len(b)) {
			return 0, errDamaged
		}
		return n, nil // the rest of a segment
	}
	b = b[:n]
	name := int64(binary.LittleEndian.Uint16(b[offName:]))
	etag := int64(binary.LittleEndian.Uint16(b[offETag:]))
	if headerBytes+name+etag > n {
		return 0, errDamaged
	}
	serial := binary.LittleEndian.Uint32(b[offSerial:])
	text := string(b[headerBytes : headerBytes+name])
	kind := b[offKind]
	if first := s.end == 0; first != (kind == kindIdentity) {
		return 0, errDamaged
	}
	switch kind {
	case kindIdentity:
		if rest, ok := strings.CutPrefix(text, layoutVersion); !ok || rest != identity {
			return 0, ErrForeign
		}
		s.created = time.Unix(0, int64(binary.LittleEndian.Uint64(b[offTime:])))
	case kindSerial:
		id := binary.LittleEndian.Uint64(b[offSize:])
		if serial != s.serial+1 || s.byNode[id] != nil {
			return 0, errDamaged
		}
		s.serial = serial
		owner, index := s.Owner(id)
		s.addDir(serial, id, text, owner, index)
	case uint8(tree.File), uint8(tree.Dir), kindGone:
		d := s.dirs[serial]
		if d == nil {
			return 0, errDamaged
		}
		slot, known := d.slot(text)
		i := d.index(uint32(s.end/recordAlign), text, b[offFlags]&flagReplaces != 0, slot, known)
		if b[offFlags]&flagDoubtful == 0 {
			d.verified[i] = longAgo
		}
	case kindListed, kindDistrust:
		return n, s.loadNote(b, text)
	default:
		return 0, errDamaged
	}
	return n, nil
}

// Readable reports why a names.log was written in a way that this program does not know,
// or for another mount than the one that identity names. It looks at its first record only.
func Readable(f *os.File, identity string) error {
	b := make([]byte, headerBytes+1<<16)
	n, err := f.ReadAt(b, 0)
	if n < headerBytes {
		return fmt.Errorf("listing snapshot %s: %w", f.Name(), errors.Join(err, errDamaged))
	}
	name := int(binary.LittleEndian.Uint16(b[offName:]))
	if b[offKind] != kindIdentity || headerBytes+name > n || string(b[headerBytes:headerBytes+name]) != layoutVersion+identity {
		return fmt.Errorf("listing snapshot %s: %w", f.Name(), ErrForeign)
	}
	return nil
}
