package main

import (
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
)

// console is a terminal that many programs print to, line by line, each behind its name.
type console struct {
	raw   io.Writer // takes what is ours, colours among it
	text  io.Writer // the same terminal; takes what others have said
	color bool
	width int // of the longest name so far
}

// newConsole prints to a command's output. Names have colours on a terminal, unless NO_COLOR is set.
func newConsole(out io.Writer) *console {
	c := &console{raw: out, text: out}
	if p, ok := out.(*process.Printable); ok {
		c.raw = p.W
		f, ok := p.W.(*os.File)
		c.color = ok && isTerminal(f) && os.Getenv("NO_COLOR") == ""
	}
	return c
}

// rackName is the name before what the rack itself says.
const rackName = "bifrost"

// colors are those of names: green, yellow, blue, magenta, cyan. The rack's own has none.
var colors = []int{32, 33, 34, 35, 36}

// print prints a line of a program, or of the rack, whose name is "".
func (c *console) print(program, line string) {
	name, color := program, 0
	if program == "" {
		name = rackName
	} else {
		h := fnv.New32a()
		_, _ = h.Write([]byte(program)) // it does not fail
		color = colors[h.Sum32()%uint32(len(colors))]
	}
	c.width = max(c.width, len(name))
	name += strings.Repeat(" ", c.width-len(name))
	if c.color && color != 0 {
		fmt.Fprintf(c.raw, "\x1b[%dm%s |\x1b[0m ", color, name)
	} else {
		fmt.Fprintf(c.text, "%s | ", name)
	}
	fmt.Fprintln(c.text, oneLine(line))
}
