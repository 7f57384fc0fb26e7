package objstore

// Op is one of the three operations of a [Store].
type Op uint8

// The operations, in the order in which counters hold them.
const (
	OpGet Op = iota
	OpHead
	OpList
	NumOps // how many there are
)

// String returns "get", "head" or "list".
func (o Op) String() string {
	switch o {
	case OpGet:
		return "get"
	case OpHead:
		return "head"
	case OpList:
		return "list"
	}
	return "unknown"
}
