package crash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting is what a rack is like. The zero Setting is a rack in the year 2000 with an MTU
// of 9000 bytes and room for everything.
type Setting struct {
	// MTU is the largest IPv6 packet in bytes.
	MTU int
	// LogLimit is how many bytes the Gatekeeper's log holds; 0 stands for its default.
	LogLimit int
	// Sync says that the log is synced before anybody is told.
	Sync bool
	// Age is how long after the year 2000 the run begins: dates and numbers made of them
	// are as long as they will be then.
	Age time.Duration
	// Jumps says that each Gatekeeper and each memory blade that starts may find the clock
	// set forward or back by up to a day.
	Jumps bool
	// Idle is how long the last client waits before it begins, and the rack with it.
	Idle time.Duration
	// Limits draws the limits and lifetimes of the Gatekeeper and of all nodes; 0 stands
	// for the defaults.
	Limits uint64
	// Calls is how many calls a chorus makes beside the program; see chorus.
	Calls int
	// Long says that one call in longEach, and its answer, is longer than a jumbo frame. Of the calls
	// that may bring a region it is every other one.
	Long bool
	// Lends says that calls pass the regions on that their executions have allocated.
	Lends bool
	// ByHand says that services with state and durable mains are started by hand, and again whenever they have ended.
	ByHand bool
	// Pairs says that the memory blades are the two copies of one machine.
	Pairs bool
	// Room is how many bytes a ledger may have; 0 stands for the default.
	Room int
	// Large is how many bytes large answers and effects have beside what they say, and a state has four times as many; 0 for none.
	Large int
	// Throng is how many clients there are more, all at once; see Throng.
	Throng int
	// Leases is how many values are shared by standing leases beside the program; see shares.
	Leases int
	// Disks says that memory blades keep their ledgers on disk, and acknowledge what is there: ledgers outlive a loss of power.
	Disks bool
}

// defaultMTU is that of the zero Setting: jumbo frames, as a rack has them.
const defaultMTU = 9000

// copies says of how many copies memory is, for counts.
func (s Setting) copies() string {
	if s.Pairs {
		return ""
	}
	return "of one copy "
}

func (s Setting) mtu() int {
	if s.MTU == 0 {
		return defaultMTU
	}
	return s.MTU
}

// String is the form that ParseSetting reads; "" for the zero Setting.
func (s Setting) String() string {
	var parts []string
	if s.MTU != 0 {
		parts = append(parts, fmt.Sprint("mtu=", s.MTU))
	}
	if s.LogLimit != 0 {
		parts = append(parts, fmt.Sprint("log=", s.LogLimit))
	}
	if s.Sync {
		parts = append(parts, "sync")
	}
	if s.Age != 0 {
		parts = append(parts, fmt.Sprint("age=", s.Age))
	}
	if s.Jumps {
		parts = append(parts, "jumps")
	}
	if s.Limits != 0 {
		parts = append(parts, fmt.Sprint("limits=", s.Limits))
	}
	if s.Idle != 0 {
		parts = append(parts, fmt.Sprint("idle=", s.Idle))
	}
	if s.Pairs {
		parts = append(parts, "pairs")
	}
	if s.Long {
		parts = append(parts, "long")
	}
	if s.Lends {
		parts = append(parts, "lends")
	}
	if s.ByHand {
		parts = append(parts, "byhand")
	}
	if s.Disks {
		parts = append(parts, "disks")
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"calls", s.Calls}, {"room", s.Room}, {"large", s.Large}, {"throng", s.Throng}, {"leases", s.Leases}} {
		if n.value != 0 {
			parts = append(parts, fmt.Sprint(n.name, "=", n.value))
		}
	}
	return strings.Join(parts, ",")
}

// ParseSetting reads what String writes.
func ParseSetting(text string) (s Setting, err error) {
	if text == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "mtu":
			s.MTU, err = strconv.Atoi(value)
		case "log":
			s.LogLimit, err = strconv.Atoi(value)
		case "limits":
			s.Limits, err = strconv.ParseUint(value, 10, 64)
		case "sync":
			s.Sync = true
		case "age":
			s.Age, err = time.ParseDuration(value)
		case "jumps":
			s.Jumps = true
		case "idle":
			s.Idle, err = time.ParseDuration(value)
		case "calls":
			s.Calls, err = strconv.Atoi(value)
		case "room":
			s.Room, err = strconv.Atoi(value)
		case "large":
			s.Large, err = strconv.Atoi(value)
		case "throng":
			s.Throng, err = strconv.Atoi(value)
		case "leases":
			s.Leases, err = strconv.Atoi(value)
		case "pairs":
			s.Pairs = true
		case "long":
			s.Long = true
		case "lends":
			s.Lends = true
		case "byhand":
			s.ByHand = true
		case "disks":
			s.Disks = true
		default:
			err = fmt.Errorf("no setting %q", name)
		}
		if err != nil {
			return s, fmt.Errorf("setting %q: %w", part, err)
		}
	}
	return s, nil
}

// DrawSetting draws the rack for a seed's program.
func DrawSetting(seed uint64) (s Setting) {
	r := rand.New(rand.NewPCG(seed, 0x5e771))
	chance := func(n, of int) bool { return r.IntN(of) < n }
	if chance(1, 2) {
		usual := []int{1280, 1500, 4000, 9000, 65535}
		if s.MTU = usual[r.IntN(len(usual))]; chance(1, 3) {
			s.MTU = 1280 + r.IntN(65535-1280+1)
		}
	}
	if chance(1, 8) {
		s.LogLimit = 64<<10 + r.IntN(1<<20)
	}
	s.Sync = chance(1, 3)
	if chance(2, 3) {
		// From 2025, when the addresses of memory begin, to 2058; they last until 2059.
		s.Age = 25*year + time.Duration(r.Int64N(int64(33*year)))
		s.Jumps = chance(1, 2)
	}
	if chance(1, 400) {
		s.Idle = time.Duration(1+r.IntN(3)) * time.Hour
	}
	s.Pairs = chance(3, 4) // with a blade that is alone its ledgers may be lost: what had begun runs again, or not at all
	_ = chance(1, 2)       // for nothing: seeds keep the racks that they had
	if chance(1, 3) {
		s.Limits = 1 + r.Uint64N(1<<20)
	}
	if chance(1, 160) {
		s.Calls = 100 + r.IntN(150)
	}
	if s.Calls == 0 && chance(1, 8) { // a short chorus: calls that write to memory, one after the other
		s.Calls = 16 + r.IntN(16)
	}
	s.Long = chance(1, 4)
	s.Lends = chance(1, 2)
	s.ByHand = chance(1, 6)
	s.drawRoom(seed)
	s.drawLeases(seed)
	return s
}

// drawRoom draws where ledgers are, how much space they have, and what is to fill them. It has dice of its own: all else
// stays. Ledgers of many MiB that are filled take long, and are rare.
func (s *Setting) drawRoom(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x1ed6e5))
	s.Disks = r.IntN(8) == 0
	if r.IntN(5) > 0 {
		return
	}
	s.Room = leastRoom << r.IntN(5)
	if r.IntN(16) == 0 {
		s.Room = 4 << 20 << r.IntN(5)
	}
	if s.Room += r.IntN(s.Room); s.Long || s.Calls > 0 { // whose calls and answers have tens of thousands of bytes
		s.Room = max(s.Room, roomForLong)
	}
	s.Room = min(s.Room, mostRoom)
	if r.IntN(2) == 0 {
		s.Large = s.Room / []int{16, 64, 256}[r.IntN(3)]
	}
	if r.IntN(8) == 0 && s.Room < 4<<20 {
		s.Throng = 8 + r.IntN(16)
		if s.Long {
			s.Room = max(s.Room, roomForThrong)
		}
		s.Large = min(s.Large, s.Room/256) // together they fit
	}
}

// leastRoom and mostRoom are the space of the smallest and the largest ledgers, roomForLong of those that take what is long, in bytes.
// roomForThrong is that for what many call at once.
const leastRoom, mostRoom, roomForLong, roomForThrong = 64 << 10, 64 << 20, 1 << 20, 4 << 20

// roomForMains is the least space of ledgers beside which there are durable mains, in bytes: between checkpoints, all that one does is
// in its ledger.
const roomForMains = 256 << 10

// space is how many bytes the ledgers of a program's rack have; 0 stands for the default. Two large answers to each client fit: while a copy of the
// memory is lost, none is forgotten.
func (s Setting) space(p *Program) uint64 {
	if s.Room == 0 {
		return 0
	}
	room := max(s.Room, 2*len(p.Clients)*s.Large)
	if slices.ContainsFunc(p.Clients, func(c Client) bool { return c.Main }) {
		room = max(room, roomForMains)
	}
	return uint64(room) //nolint:gosec // not negative
}

// largeEach is of how many operations one has something large.
const largeEach = 6

// large is how many bytes an operation's answer or effect has beside what it says.
func (s Setting) large(op int) int {
	if op%largeEach == 0 {
		return s.Large
	}
	return 0
}

const year = 8766 * time.Hour
