package dir

// SetWindow makes scans keep only n names, so that a small directory is a large one.
func (s *Store) SetWindow(n int) { s.scan.maxNames = n }
