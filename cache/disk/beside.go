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

// InTime has a call to the directory's file system come back within [Config.CallTimeout], as all calls of
// the Dir do: else it returns [ErrHung], or so when nothing is to be tried now. Then call goes on by itself, and late runs after
// it. Both use nothing that the caller uses afterwards.
func (d *Dir) InTime(op string, call func() error, late func()) error {
	if d.guard == nil {
		return call()
	}
	return d.guard.do(op, call, late)
}
