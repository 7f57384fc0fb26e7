package control

import "errors"

// Operation is what a caller wants.
type Operation string

// The operations of the socket.
const (
	OpMount   Operation = "mount"
	OpUmount  Operation = "umount"
	OpUsage   Operation = "usage"
	OpStatus  Operation = "status"
	OpRefresh Operation = "refresh"
	OpList    Operation = "ls"
	OpRead    Operation = "get"
	OpVersion Operation = "version"
	OpPin     Operation = "pin"
	OpDrain   Operation = "drain"
	OpWarm    Operation = "warm"
)

// ErrRefused says that a caller may not do what it asked for.
var ErrRefused = errors.New("refused")

// Authorize decides whether a caller may do something on a node that runs as
// the user self: root and self may do everything. Others may ask who answers.
// What else they ask would be read with the node's credentials, or mounted
// with its rights; until a caller can bring its own, it is refused. The
// error is in words meant for the user and matches [ErrRefused].
func Authorize(caller Caller, self uint32, op Operation) error {
	switch {
	case caller.UID == 0 || caller.UID == self:
		return nil
	case op == OpVersion || op == OpStatus:
		return nil
	case op == OpMount || op == OpList || op == OpRead:
		return refusal("the node would read with its own credentials: it takes this from root and its own user only; run your own node, or ask root")
	default:
		return refusal("the node takes this from root and its own user only; ask root")
	}
}

// refusal is an error of class [ErrRefused] whose text is all for the user.
type refusal string

func (r refusal) Error() string        { return string(r) }
func (r refusal) Is(target error) bool { return target == ErrRefused }
