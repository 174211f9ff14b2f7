package rights

import (
	"fmt"
	"strconv"
	"strings"
)

// The programs that nodes run. A program is a sequence of operations on variables, which have regions:
//
//	alloc 0                  variable 0 gets a new region
//	write 0, read 0          its content; a read must find what was written last
//	call f@12 0 1 = 2        calls f of node 12 with what 0 and 1 have; its result goes to 2
//	giveup f@12 0 = 1        the same; once f has begun, the caller may wait no longer
//	oneway f@12 0            hands 0 over; it leaves when the execution is done
//	share 0 with 12 = 1      a standing lease of 0 for node 12; 1 gets its handle, which is passed as a value
//	name 0 = 1               1 gets a handle of 0 that gives nobody a right
//	use 0                    the handle in 0 becomes a region, which is read by the lease if there is one
//	unshare 1                ends the lease
//	return 2                 the result; it is the caller's then
//
// Nodes 1 to 7 are clients and run m1 to m13. Nodes 11, 12 and 13 are services.
var programs = parsePrograms(map[string]string{
	"leaf":  "read 0; alloc 2; write 2; return 2",
	"leaf0": "alloc 2; write 2; return 2",
	"read":  "read 0",
	"read2": "read 0; read 1",
	"many":  "read 0; read 1; read 2; alloc 3; write 3; alloc 4; alloc 5; write 5; return 3 4 5",
	"mid":   "read 0; alloc 1; write 1; call leaf@12 0 1 = 2; read 2; write 1; write 2; return 2",
	"gup":   "alloc 1; write 1; giveup leaf@12 1 0 = 2; read 1; return 1",
	"give":  "alloc 1; write 1; oneway take@13 1",
	"ret":   "read 0; call leaf@13 0 = 1; write 1; read 1; return 1",
	"re1":   "read 0; alloc 1; write 1; call re2@12 0 1; write 1; return 1",
	"re2":   "read 0; call read2@11 0 1; read 1",
	"wide":  "read 2; alloc 3; write 3; giveup deep@12 0 2 3; read 3; return 3",
	"deep":  "read 0; read 1; call read@13 1; read 2",
	"on1":   "read 0; call on2@12 0; read 0",
	"on2":   "call on3@11 0; read 0",
	"on3":   "call leaf@13 0 = 1; read 1; read 0; return 1",
	"look":  "use 0; read 0; call read@13 0; read 0; call back@11 0; alloc 2; write 2; return 2",
	"peek":  "alloc 1; use 0; read 0; call read@13 0; read 0",
	"back":  "read 0",
	"own":   "call fetch@11 = 0; read 0; write 0; return 0",
	"fetch": "call leaf0@12 = 0; return 0",
	"wrong": "use 0; return 0",
	"relay": "giveup wrong@12 0",
	// One-ways.
	"take": "! read 0; write 0; read 0",
	"pass": "! read 0; call read@13 0; write 0; oneway take@13 0",
	// Policy none: no ledger.
	"nmid":  "- read 0; call leaf@12 0 = 1; call nleaf@13 0 1 = 2; write 1; read 2; return 1",
	"nleaf": "- read 0; alloc 2; write 2; return 2",
	// Mains.
	"m1":  "alloc 0; write 0; call mid@11 0 = 1; read 1; write 0; write 1; oneway take@12 0",
	"m2":  "alloc 0; write 0; alloc 1; alloc 2; write 2; call many@12 0 1 2 = 3 4 5; read 3; read 5; write 0; call read@11 3; write 3",
	"m3":  "alloc 0; write 0; call gup@11 0 = 1; read 1; write 1; oneway pass@12 1; oneway take@11 0",
	"m4":  "alloc 0; write 0; giveup leaf@12 0 = 1; call give@12 0; call ret@11 0 = 2; read 2; write 2",
	"m5":  "call leaf0@12 = 0; write 0; call leaf@12 0 = 1; read 1; write 0; write 1",
	"m6":  "alloc 0; write 0; call re1@11 0 = 1; write 0; read 1",
	"m7":  "alloc 0; write 0; alloc 1; write 1; alloc 2; write 2; call wide@11 0 1 2 = 3; write 0; write 2; read 3",
	"m8":  "alloc 0; write 0; call on1@11 0; write 0",
	"m9":  "alloc 0; write 0; call nmid@11 0 = 1; write 0; read 1; call nleaf@12 1 = 2; read 2; write 1",
	"m10": "alloc 0; write 0; share 0 with 12 = 1; call look@12 1 = 2; read 2; unshare 1; write 0; share 0 with 11 = 3; read 0",
	"m11": "alloc 0; write 0; share 0 with 12 = 1; giveup peek@12 1; unshare 1; write 0; read 0",
	"m12": "call own@12 = 0; read 0; write 0",
	"m13": "alloc 0; write 0; name 0 = 1; call relay@11 1; oneway take@12 0",
	// What the runtime does by itself.
	"fenced": "alloc 0",
})

var mains = []string{"m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10", "m11", "m12"}

// othersRegion is a main, one of whose callees answers with a region that is not its node's. It runs in worlds of its own.
const othersRegion = "m13"

// program is a handler, or a main.
type program struct {
	name   string
	steps  []step
	result []int // variables
	oneway bool
	none   bool // of policy none: its node keeps no ledger of it
}

type step struct {
	do      string
	on      int   // variable
	args    []int // variables
	results []int // variables
	calls   string
	to      int
}

func parsePrograms(texts map[string]string) map[string]*program {
	all := map[string]*program{}
	for name, text := range texts {
		p := &program{name: name}
		p.oneway, p.none = strings.HasPrefix(text, "! "), strings.HasPrefix(text, "- ")
		for line := range strings.SplitSeq(strings.TrimLeft(text, "!- "), ";") {
			words := strings.Fields(line)
			s := step{do: words[0]}
			for i, word := range words[1:] {
				if f, to, ok := strings.Cut(word, "@"); ok {
					s.calls, s.to = f, number(to)
				} else if before := words[i]; before == "with" {
					s.to = number(word)
				} else if word != "=" && word != "with" {
					s.args = append(s.args, number(word))
				}
			}
			if _, results, ok := strings.Cut(line, "= "); ok {
				for word := range strings.FieldsSeq(results) {
					s.results = append(s.results, number(word))
				}
				s.args = s.args[:len(s.args)-len(s.results)]
			}
			if len(s.args) > 0 {
				s.on = s.args[0]
			}
			if s.do == "return" {
				p.result = s.args
				continue
			}
			p.steps = append(p.steps, s)
		}
		all[name] = p
	}
	return all
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(fmt.Sprintf("%q is no number", text))
	}
	return n
}
