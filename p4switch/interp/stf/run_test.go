package stf_test

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

func run(t *testing.T, program, script string) error {
	t.Helper()
	data, err := os.ReadFile("../testdata/" + program + ".json")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := v1model.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	r := stf.New(prog)
	x, err := interp.New(prog, interp.Config{Sink: r})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	r.Attach(x)
	return r.Run(strings.NewReader(script))
}

// A script that expects something else than what happens fails, and says how.
func TestNotices(t *testing.T) {
	const send = "packet 1 00 00 aa\n" // the program stacks answers 000000aa 0000aa at port 2
	count := "packet 1 0302" + strings.Repeat("00", 15) + "\n"
	for _, c := range []struct{ program, script, says string }{
		{"stacks", send + "expect 2 00 00 00 aa  00 00 aa$", ""},
		{"stacks", send + "expect 2 00 ** 00 a*", ""},
		{"stacks", send + "expect 2", ""},
		{"stacks", send, ""}, // port 2 is not mentioned
		{"stacks", send + "expect 2 00 00 00 ab", "got 000000AA0000AA"},
		{"stacks", send + "expect 2 00 00 00 aa  00 00$", "got 000000AA0000AA"},
		{"stacks", send + "expect 2 00 00 00 aa 00 00 aa 00", "got 000000AA0000AA"},
		{"stacks", send + "expect 2 00\nexpect 2 00", "packet 2 of 2 did not come"},
		{"stacks", send + send + "expect 2 00", "packet 2 where 1 were expected"},
		{"stacks", send + "expect 3 00", "port 3: packet 1 of 1 did not come"},
		{"stacks", "packet 1 0", "odd length"},
		{"stacks", "packet x 00", `port "x"`},
		{"copies", "packet 1 09 00 00 5c\nexpect 2\ndigest digest_t 00 0000 00", "digests"},
		{"copies", "packet 1 09 00 00 5c\nexpect 2\ndigest none", "digests"},
		{"stacks", send + "digest none", ""},
		{"stacks", "wait\nmirroring_get 1\n\n# nothing", ""},
		{"stacks", send + "paket 1 00", `line 2: paket 1 00: there is no command "paket": use one of add, `},
		{"stacks", "add", "no table"},
		{"stacks", "packet", `port ""`},
		{"stacks", "expect", `port ""`},
		{"stacks", "register", "register of what?"},
		{"state", count + "check_counter seen(2) packets == 1\ncheck_counter seen(2) bytes == 17\ncheck_counter seen(2)", ""},
		{"state", count + "check_counter seen(2) packets != 2\ncheck_counter seen(2) packets < 2\ncheck_counter seen(2) packets >= 1", ""},
		{"state", count + "check_counter seen(2) packets == 2", "it is 1"},
		{"state", count + "check_counter seen(2) packets > 1", "it is 1"},
		{"state", count + "check_counter seen(2", "no index"},
		{"state", count + "check_counter seen(2) packets ==", "write NAME(INDEX)"},
		{"state", count + "check_counter seen(2) packets ~ 1", `operator "~"`},
		{"state", count + "check_counter seen(x)", `index "x" is no number`},
		{"state", count + "check_counter seen($x)", "no entry has the handle $x"},
		{"state", count + "check_counter nothing(1)", `no counter "nothing"`},
		{"copies", "mc_node_associate 7 3", "no node 3"},
		{"state", "packet 1 0302" + strings.Repeat("00", 15) + "\ncounter seen 2 2 17", "is {Packets:1 Bytes:17}"},
		{"state", "packet 1 0302" + strings.Repeat("00", 15) + "\ncounter seen 2 2", "is {Packets:1 Bytes:17}"},
		{"state", "packet 1 0302" + strings.Repeat("00", 15) + "\ncounter seen 2 1\ncounter seen * 1", ""},
		{"state", "packet 1 0302" + strings.Repeat("00", 15) + "\ncounter seen * 0", "has 1 packets, not 0"},
		{"state", "register_write nothing 0 0", `no register "nothing"`},
		{"tables", "add nothing h.h.a:1 set(r:1)", `no table "nothing"`},
		{"tables", "add exact_two h.h.a:1 nothing(r:1)", `no action "nothing"`},
		{"tables", "add exact_two h.h.z:1 set(r:1)", `no key "h.h.z"`},
		{"tables", "add exact_two h.h.a:1 set()", `without "r"`},
		{"tables", "add exact_two h.h.a:x set(r:1)", `"x" is no number`},
		{"tables", "add exact_two set(r:1)\nadd exact_two set(r:1)", "line 2"},
	} {
		err := run(t, c.program, c.script)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%q: %v", c.script, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%q: %v does not say %q", c.script, err, c.says)
		}
	}
}

// FuzzRun: whatever a script says, it runs, or an *Error tells the line; what is compared at the end has none.
func FuzzRun(f *testing.F) {
	for _, name := range []string{"stacks", "tables", "state", "copies"} {
		b, err := os.ReadFile("../testdata/" + name + ".stf")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b[:len(b)*2/3]))
	}
	f.Add("check_counter seen(1) packets == 1\nadd exact_two h.h.a:1 set(r:1) = $x\ncheck_counter a($x)")
	data, err := os.ReadFile("../testdata/tables.json")
	if err != nil {
		f.Fatal(err)
	}
	prog, err := v1model.Load(data)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, script string) {
		r := stf.New(prog)
		x, err := interp.New(prog, interp.Config{Sink: r, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		r.Attach(x)
		var at *stf.Error
		if err := r.Run(strings.NewReader(script)); errors.As(err, &at) && (at.Line < 1 || at.Line > strings.Count(script, "\n")+1) {
			t.Errorf("line %d of %d", at.Line, strings.Count(script, "\n")+1)
		}
	})
}
