package varint

import (
	"bytes"
	"math"
	"testing"
)

func TestDecoder(t *testing.T) {
	b := Append(nil, math.MaxUint64)
	b = AppendSigned(b, math.MinInt64)
	b = append(b, 7)
	b = AppendText(b, "name")
	b = AppendText(b, []byte{})
	b = append(Append(b, 2), 'x', 'y')
	d := NewDecoder(b)
	if n := d.Number(); n != math.MaxUint64 {
		t.Errorf("number %d", n)
	}
	if n := d.Signed(); n != math.MinInt64 {
		t.Errorf("signed number %d", n)
	}
	if c := d.Byte(); c != 7 {
		t.Errorf("byte %d", c)
	}
	if s := d.Text(4); string(s) != "name" {
		t.Errorf("text %q", s)
	}
	if s := d.Text(0); len(s) != 0 || d.Bad() {
		t.Errorf("text %q, bad: %v", s, d.Bad())
	}
	if n := d.Count(); n != 2 || d.Left() != 2 || d.Whole() {
		t.Errorf("count %d, %d bytes left, whole: %v", n, d.Left(), d.Whole())
	}
	if s := d.Bytes(2); string(s) != "xy" || !d.Whole() {
		t.Errorf("bytes %q, whole: %v", s, d.Whole())
	}
}

// TestDecoderRefuses reads what is cut off, too long or beyond a limit.
func TestDecoderRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		read func(*Decoder)
	}{
		{"no byte", nil, func(d *Decoder) { d.Byte() }},
		{"no number", nil, func(d *Decoder) { d.Number() }},
		{"number cut off", []byte{0x80}, func(d *Decoder) { d.Number() }},
		{"number of 65 bits", bytes.Repeat([]byte{0xff}, 11), func(d *Decoder) { d.Number() }},
		{"signed number cut off", []byte{0x80}, func(d *Decoder) { d.Signed() }},
		{"more bytes than there are", []byte{1}, func(d *Decoder) { d.Bytes(2) }},
		{"text beyond its limit", []byte{2, 'x', 'y'}, func(d *Decoder) { d.Text(1) }},
		{"text cut off", []byte{2, 'x'}, func(d *Decoder) { d.Text(9) }},
		{"number beyond its limit", []byte{2}, func(d *Decoder) { d.AtMost(1) }},
		{"more things than bytes", Append(nil, math.MaxUint64), func(d *Decoder) { d.Count() }},
		{"refused", []byte{1, 2}, func(d *Decoder) { d.Fail() }},
	} {
		d := NewDecoder(c.b)
		if c.read(&d); !d.Bad() || d.Whole() || d.Left() != 0 {
			t.Errorf("%s: bad: %v, whole: %v, %d bytes left", c.name, d.Bad(), d.Whole(), d.Left())
		}
		if d.Byte() != 0 || d.Number() != 0 || d.Signed() != 0 || d.Count() != 0 || len(d.Text(9)) != 0 {
			t.Errorf("%s: values after the first that was missing", c.name)
		}
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte{0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b, calls []byte) {
		whole := bytes.Clone(b)
		d := NewDecoder(b)
		for _, c := range calls {
			before := d.Left()
			switch c % 6 {
			case 0:
				d.Byte()
			case 1:
				d.Number()
			case 2:
				d.Signed()
			case 3:
				if n := d.Count(); n > d.Left() {
					t.Fatalf("count %d of %d bytes", n, d.Left())
				}
			case 4:
				d.Bytes(uint64(c))
			case 5:
				d.Text(uint64(c))
			}
			if d.Left() > before || d.Bad() && d.Left() != 0 {
				t.Fatalf("%d bytes left of %d, bad: %v", d.Left(), before, d.Bad())
			}
		}
		if !bytes.Equal(b, whole) {
			t.Fatal("the decoder changed its bytes")
		}
	})
}
