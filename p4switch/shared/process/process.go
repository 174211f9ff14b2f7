// Package process has what Bifröst's processes have in common: the flags of their logs, and how they use Go's runtime.
package process

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"unicode"
	"unicode/utf8"
)

// ballastSize is how much garbage there is at least between two collections.
const ballastSize = 32 << 20

// ballast is never touched, so it takes no memory.
var ballast []byte //nolint:unused // it is there to be there

// CollectRarely makes the garbage collector of a process with a small heap run
// less often. It runs when the heap has doubled, and that of a switch or a
// Gatekeeper is a few megabytes: under load it ran hundreds of times a second, and
// took half the time of a P4Runtime Write. With what is live counted larger by
// the ballast it leaves some 32 MiB of garbage, whatever the size of the tables.
// Who sets GOGC or GOMEMLIMIT knows better.
func CollectRarely() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		ballast = make([]byte, ballastSize)
	}
}

// Processors gives Go's scheduler n processors, unless GOMAXPROCS says otherwise.
//
// One is best for a process that does one thing after the other, each on a goroutine
// of its own, as a Gatekeeper, a switch on eBPF and a memory daemon do: with more, every hand-over
// wakes a thread that looks for work and finds that it has been done. A held packet
// then takes a fifth longer, and 64 callers get a sixth less.
func Processors(n int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}

// Printable is a terminal that gets what others have said, such as the names of methods and the reasons of errors: it shows
// control characters, and what changes the direction of text, as escapes of JSON, and bytes that are no UTF-8 as \x and two
// digits. Newlines and tabs pass. All that bifrost prints goes through one, whether to a terminal or not; a backup is not printed.
// It is for one goroutine.
type Printable struct {
	W    io.Writer // the terminal
	rest []byte    // the beginning of a character
}

// Write implements io.Writer.
func (p *Printable) Write(b []byte) (int, error) {
	all := slices.Concat(p.rest, b)
	out := make([]byte, 0, len(all))
	for len(all) > 0 && utf8.FullRune(all) {
		r, size := utf8.DecodeRune(all)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, all[0])
		case r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)):
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = append(out, all[:size]...)
		}
		all = all[size:]
	}
	p.rest = append([]byte(nil), all...)
	if _, err := p.W.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}
