package checks

import (
	"bufio"
	"context"
	"encoding/hex"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"github.com/bifrost-rack/bifrost/p4switch/switchcmd"
)

// servedSwitch is a switch with the program of p4switch/README.md and ports 1 and 2, which serves at an address.
func servedSwitch(t *testing.T) (sw *softswitch.Switch, address string) {
	t.Helper()
	program, err := os.ReadFile("../p4switch/testdata/basic.json")
	must(t, err)
	text, err := os.ReadFile("../p4switch/testdata/basic.p4info.txt")
	must(t, err)
	info := &configv1.P4Info{}
	must(t, prototext.Unmarshal(text, info))
	sw, err = softswitch.New(softswitch.Config{DeviceID: 1})
	must(t, err)
	t.Cleanup(func() { must(t, sw.Close()) })
	must(t, sw.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: program}))
	must(t, sw.Attach(1, func([]byte) {}))
	must(t, sw.Attach(2, func([]byte) {}))
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- sw.Serve(l) }()
	t.Cleanup(func() {
		must(t, sw.Close())
		must(t, <-served)
	})
	return sw, "unix:" + socket
}

// switchCommand runs a command of the switch until the test ends, and gives what it prints.
func switchCommand(t *testing.T, args ...string) io.Reader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	root := switchcmd.New("bifrost-switch", "")
	root.SetArgs(args)
	root.SetOut(in)
	done := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		_ = in.Close()
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	return out
}

// frame is an IPv4 packet from 10.0.1.1 to 10.0.2.N.
func frame(n byte) []byte {
	b, err := hex.DecodeString("080000000100" + "080000000111" + "0800" + "4500002e000000004011000" + "00a0001010a0002" + hex.EncodeToString([]byte{n}) + strings.Repeat("00", 26))
	if err != nil {
		panic(err) // it is written here
	}
	return b
}

// TestSwitchPage: the page of a switch shows its ports, tables and program, and of a packet that is traced where it was and what became of it.
func TestSwitchPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	sw, address := servedSwitch(t)
	_, err := io.ReadAll(switchCommand(t, "entry", "ipv4_lpm", "hdr.ipv4.dstAddr=10.0.2.2/32", "ipv4_forward", "dstAddr=08:00:00:00:02:11", "port=2", "--grpc-addr", address))
	must(t, err)
	url, err := bufio.NewReader(switchCommand(t, "page", "--grpc-addr", address)).ReadString('\n')
	must(t, err)
	b := openBrowser(t)
	b.size(1440, 900, false)
	b.do(chromedp.Navigate(strings.TrimSpace(url)))
	b.until(`document.querySelector('#link').textContent === 'live'`)
	for what, want := range map[string]string{
		`location.hash`: "", // the token is no longer to be seen
		`[...document.querySelectorAll('#ports tbody tr')].map((tr) => tr.dataset.port).join(' ')`:                                   "1 2",
		`[...document.querySelectorAll('#tables tbody tr')].map((tr) => tr.dataset.table + ' ' + tr.cells[1].textContent).join(' ')`: "MyIngress.ipv4_lpm 1",
		`[...document.querySelectorAll('#parts h3')].map((e) => e.textContent).join(' ')`:                                            "parser ingress egress",
		`[...document.querySelectorAll('#parts .part:nth-of-type(2) .what')].map((e) => e.textContent).join(', ')`:                   "hdr.ipv4.isValid(), MyIngress.ipv4_lpm, MyIngress.drop, end",
	} {
		if got := value[string](b, what); got != want {
			t.Errorf("%s is %q, not %q", what, got, want)
		}
	}

	// A filter that is wrong is told of, with the remedy.
	b.do(chromedp.SendKeys(chromedp.CSS("#filter"), "nothing=1\r"))
	b.until(`document.querySelector('#says').textContent.includes('choose one of')`)
	value[bool](b, `(() => { document.querySelector('#filter').value = 'ipv4'; return true; })()`)
	b.do(chromedp.Click(chromedp.CSS("#start")))
	b.until(`document.querySelector('#says').textContent === 'Tracing.'`)
	sw.Input(1, frame(2))
	sw.Input(1, frame(9))
	b.until(`document.querySelectorAll('#packets tbody tr').length === 2`)
	const way = `[...document.querySelectorAll('#parts li.met')].map((li) => (li.children[0].textContent + ': ' + li.children[1].textContent)).join('\n')`
	wantFirst := "start: \nipv4: \nend: \nhdr.ipv4.isValid(): is true\n" +
		"MyIngress.ipv4_lpm: hdr.ipv4.dstAddr=0a000202 hit 0a000202/32 MyIngress.ipv4_forward dstAddr=080000000211 port=0002\nend: \nend: out port 2 60 bytes"
	wantSecond := "start: \nipv4: \nend: \nhdr.ipv4.isValid(): is true\nMyIngress.ipv4_lpm: hdr.ipv4.dstAddr=0a000209 miss MyIngress.drop\nend: drop ingress"
	if got := value[string](b, way); got != wantFirst { // the first is chosen
		t.Errorf("the first packet's way:\n%s\nnot:\n%s", got, wantFirst)
	}
	if got := value[int](b, `document.querySelectorAll('#parts path.met').length`); got != 4 {
		t.Errorf("%d lines are marked, not 4", got)
	}
	b.do(chromedp.Click(chromedp.CSS("#packets tbody tr:first-child button"))) // the newest
	if got := value[string](b, way); !strings.HasPrefix(got, wantSecond) {
		t.Errorf("the second packet's way:\n%s\nnot:\n%s", got, wantSecond)
	}
	if got := value[string](b, `document.querySelector('#packets tbody tr[aria-selected="true"]').cells[4].textContent`); !strings.HasPrefix(got, "dropped: ") {
		t.Errorf("of the second packet became %q", got)
	}
	b.until(`document.querySelector('#ports tr[data-port="2"]').cells[5].textContent === '1' && document.querySelector('#tables tbody tr').cells[3].textContent === '1'`)
	if dir := os.Getenv("SWITCH_PAGE_PICTURES"); dir != "" {
		picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "switch.png"), picture, 0o600))
	}
	b.do(chromedp.Click(chromedp.CSS("#only")))
	if got := value[int](b, `[...document.querySelectorAll('#parts li')].filter((e) => e.offsetParent).length`); got != 6 {
		t.Errorf("%d rows are shown, not 6", got)
	}
	b.do(chromedp.Click(chromedp.CSS("#start")))
	b.until(`document.querySelector('#says').textContent.startsWith('Stopped.')`)

	// Another program takes the place of the first one on the page, too.
	other, err := os.ReadFile("../p4switch/interp/testdata/tables.json")
	must(t, err)
	must(t, sw.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: &configv1.P4Info{}, P4DeviceConfig: other}))
	b.until(`![...document.querySelectorAll('#parts .what')].some((e) => e.textContent === 'MyIngress.ipv4_lpm')`)
	if got := value[int](b, `document.querySelectorAll('#parts .met').length`); got != 0 {
		t.Errorf("%d rows of another program are marked", got)
	}

	// Without the token nothing is shown, and the page says what to do.
	b.expect("401")
	value[bool](b, `(() => { sessionStorage.clear(); return true; })()`)
	b.until(`document.querySelector('#trouble').textContent.includes('the address that the command has printed')`)
}
