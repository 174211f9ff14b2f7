package bulk

// Push is how many bytes of parts, as Cost counts them, follow a first packet
// without being asked for: with the largest datagrams three parts. Together with the
// first packet they fit the receive buffer that Linux gives an unprivileged socket.
const Push = 200 << 10

// MaxPull is how many bytes one pull is answered with at most: a pull of 1.3 KiB
// cannot make a node send for longer than a millisecond.
const MaxPull = 4 << 20

// Cost is what a datagram with a part of size bytes takes of a receive buffer: the
// kernel keeps a record of its own with each.
func Cost(size int) int { return size + 1024 }

// Pushed is how many bytes behind the first packet's follow it without being asked
// for, in parts of size bytes.
func Pushed(total, first uint64, size int) Range {
	parts := uint64(max(1, Push/Cost(size)))
	return Range{Offset: first, Length: min(total-first, parts*uint64(size))}
}

// Cut appends the parts that a pull asks for, in its order: of the size that it
// names, but of most bytes at most. What exceeds MaxPull is left out.
func Cut(out []Range, ranges []Range, size, most int) []Range {
	step := uint64(min(size, most))
	left := uint64(MaxPull)
	for _, r := range ranges {
		for r.Length > 0 && left > 0 {
			n := min(step, r.Length, left)
			out = append(out, Range{Offset: r.Offset, Length: n})
			r.Offset, r.Length, left = r.Offset+n, r.Length-n, left-n
		}
	}
	return out
}
