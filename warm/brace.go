package warm

import (
	"iter"
	"math"
	"strconv"
	"strings"
)

// template is text with braces: a row of parts. It expands as in shells:
//
//	a{b,c}d      abd acd
//	{08..10}     08 09 10
//	{a,b{1..2}}  a b1 b2
//	{x}          {x}, for there is nothing to choose
//
// A backslash takes the meaning from the character behind it, and stays where it is when the
// text is a pattern, for which it means the same.
type template []part

// part is one of three: text, a choice, or numbers and letters in a row.
type part struct {
	text   string
	choice []template
	span   *span
}

// span is {from..to..step}.
type span struct {
	from, to, step int64
	width          int  // digits, with zeros in front; 0: as many as it takes
	letter         bool // from and to are characters
}

func (s span) count() uint64 {
	distance := s.to - s.from
	if distance < 0 {
		distance = -distance
	}
	return uint64(distance/s.step) + 1
}

func (s span) at(i uint64) string {
	v := s.from + int64(i)*s.step
	if s.to < s.from {
		v = s.from - int64(i)*s.step
	}
	if s.letter {
		return string(rune(v))
	}
	digits := strconv.FormatInt(max(v, -v), 10)
	sign := ""
	if v < 0 {
		sign = "-"
	}
	if pad := s.width - len(sign) - len(digits); pad > 0 {
		digits = strings.Repeat("0", pad) + digits
	}
	return sign + digits
}

// parseTemplate reads a template.
func parseTemplate(s string) (template, error) {
	t, rest, err := parseRow(s, 0)
	if err == nil && rest != "" {
		err = usagef("%q: a } without a {: write \\} for the character", s)
	}
	return t, err
}

// parseRow reads parts up to the end of s, or within braces up to the comma or brace that ends them.
func parseRow(s string, depth int) (t template, rest string, err error) {
	if depth > maxNesting {
		return nil, "", usagef("braces are nested more than %d deep", maxNesting)
	}
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			t = append(t, part{text: text.String()})
			text.Reset()
		}
	}
	for s != "" {
		switch c := s[0]; {
		case c == '\\' && len(s) > 1:
			text.WriteString(s[:2])
			s = s[2:]
		case c == '{':
			p, after, err := parseBraces(s, depth)
			if err != nil {
				return nil, "", err
			}
			flush()
			t = append(t, p...)
			s = after
		case c == '}', c == ',' && depth > 0:
			flush()
			return t, s, nil
		default:
			text.WriteByte(c)
			s = s[1:]
		}
	}
	flush()
	return t, "", nil
}

// parseBraces reads what s begins with: {…}.
func parseBraces(s string, depth int) (t template, rest string, err error) {
	unclosed := usagef("%q: the { is not closed: write \\{ for the character", s)
	if end := strings.IndexAny(s[1:], "{},\\"); end >= 0 && s[1+end] == '}' {
		if sp, ok, err := parseSpan(s[1 : 1+end]); ok || err != nil {
			return template{{span: sp}}, s[end+2:], err
		}
	}
	p := part{}
	for rest = s[1:]; ; {
		var row template
		if row, rest, err = parseRow(rest, depth+1); err != nil {
			return nil, "", err
		}
		p.choice = append(p.choice, row)
		switch {
		case rest == "":
			return nil, "", unclosed
		case rest[0] == ',':
			rest = rest[1:]
			continue
		}
		break
	}
	if len(p.choice) == 1 { // nothing to choose: the braces are text
		t = append(t, part{text: "{"})
		t = append(t, p.choice[0]...)
		return append(t, part{text: "}"}), rest[1:], nil
	}
	return template{p}, rest[1:], nil
}

// parseSpan reads A..B or A..B..STEP, of numbers or of single letters.
func parseSpan(s string) (*span, bool, error) {
	ends := strings.Split(s, "..")
	if len(ends) < 2 || len(ends) > 3 {
		return nil, false, nil
	}
	sp := &span{step: 1}
	if len(ends) == 3 {
		step, err := strconv.ParseInt(ends[2], 10, 64)
		if err != nil || step == math.MinInt64 {
			return nil, false, nil
		}
		sp.step = max(1, step, -step)
	}
	if isLetter(ends[0]) && isLetter(ends[1]) {
		sp.letter, sp.from, sp.to = true, int64(ends[0][0]), int64(ends[1][0])
		return sp, true, nil
	}
	var errFrom, errTo error
	sp.from, errFrom = strconv.ParseInt(ends[0], 10, 64)
	sp.to, errTo = strconv.ParseInt(ends[1], 10, 64)
	if errFrom != nil || errTo != nil {
		return nil, false, nil
	}
	const most = 1 << 60 // so that differences have room
	if max(sp.from, sp.to) > most || min(sp.from, sp.to) < -most || sp.count() > maxSpanCount {
		return nil, false, usagef("{%s}: more than %d names", s, maxSpanCount)
	}
	if padded(ends[0]) || padded(ends[1]) {
		sp.width = max(len(ends[0]), len(ends[1]))
	}
	return sp, true, nil
}

func isLetter(s string) bool {
	return len(s) == 1 && (s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z')
}

// padded reports whether a number has zeros in front.
func padded(s string) bool {
	s = strings.TrimPrefix(s, "-")
	return len(s) > 1 && s[0] == '0'
}

// count returns how many texts a template expands to, at most 1<<62.
func (t template) count() uint64 {
	const most = 1 << 62
	n := uint64(1)
	for _, p := range t {
		m := uint64(1)
		switch {
		case p.span != nil:
			m = p.span.count()
		case p.choice != nil:
			m = 0
			for _, c := range p.choice {
				m = min(most, m+c.count())
			}
		}
		if m > 0 && n > most/m {
			return most
		}
		n *= m
	}
	return n
}

// all yields the texts of a template, the last part changing fastest.
func (t template) all() iter.Seq[string] {
	return func(yield func(string) bool) { t.expand("", yield) }
}

// expand yields what t expands to behind before.
func (t template) expand(before string, yield func(string) bool) bool {
	if len(t) == 0 {
		return yield(before)
	}
	p, rest := t[0], t[1:]
	switch {
	case p.span != nil:
		for i := range p.span.count() {
			if !rest.expand(before+p.span.at(i), yield) {
				return false
			}
		}
	case p.choice != nil:
		for _, c := range p.choice {
			if !c.expand(before, func(s string) bool { return rest.expand(s, yield) }) {
				return false
			}
		}
	default:
		return rest.expand(before+p.text, yield)
	}
	return true
}
