package disk

// Beside books n bytes more, or less when n is negative, that somebody else keeps in the
// directory: they count in its budget, and what they take is left free of blocks. It reports
// false, and books nothing, where the budget or a floor does not admit them.
func (d *Dir) Beside(n int64) bool {
	l := &d.ledger
	if n > 0 {
		if _, err := l.reserve(n, 1, true); err != nil {
			return false
		}
		defer l.unreserve(n, true)
	}
	l.orphan(n)
	return true
}
