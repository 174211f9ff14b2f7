package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// python is the one that has Thrift's library.
const python = "/usr/bin/python3"

// children are the processes that a process has started.
func (h *home) children(pid int) (all []int) {
	h.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	h.must(err)
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended; its children are another one's
		}
		h.must(err)
		for _, child := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(child)
			h.must(err)
			all = append(all, n)
		}
	}
	return all
}

// killChild kills the child of the host that the rack runs.
func (h *home) killChild() {
	h.Helper()
	all := h.children(h.program())
	if len(all) != 1 {
		h.Fatalf("the host has the children %v", all)
	}
	h.must(syscall.Kill(all[0], syscall.SIGKILL))
}

// receiptSet are the receipts of calls that several goroutines make.
type receiptSet struct {
	mu   sync.Mutex
	all  map[string]bool
	more chan struct{} // has room for one
}

// add reports false if an answer is no receipt, or one that another call has got.
func (r *receiptSet) add(answer string) bool {
	var receipt string
	r.mu.Lock()
	defer r.mu.Unlock()
	if json.Unmarshal([]byte(answer), &receipt) != nil || len(receipt) != 16 || r.all[receipt] {
		return false
	}
	r.all[receipt] = true
	select {
	case r.more <- struct{}{}:
	default:
	}
	return true
}

// await waits until there are so many more.
func (r *receiptSet) await(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.all)
	}
	for had := count(); count() < had+n; {
		select {
		case <-r.more:
		case <-time.After(patience):
			t.Fatal("calls do not go on")
		}
	}
}

// accounts are what the bank has, by HTTP.
func (p *printed) accounts(key string) (all map[string]int64) {
	p.Helper()
	got := p.call("Bank/accounts", "{}", key)
	if err := json.Unmarshal([]byte(got), &all); err != nil {
		p.Fatalf("accounts: %v: %s", err, got)
	}
	return all
}

// TestDev_Host: the example in Python, as it is, is exactly once and has state: its process is killed between two calls and during calls, its host is
// killed, and the rack is started anew.
func TestDev_Host(t *testing.T) {
	if _, err := exec.LookPath("thrift"); err != nil || exec.Command(python, "-c", "import thrift").Run() != nil {
		t.Skip("needs Thrift's compiler, and its library for " + python + ": make setup")
	}
	const clients = "../../clients/python/"
	h := newHome(t)
	for _, name := range []string{"bank_service.py", "bank.thrift", "bank.yaml"} {
		b, err := os.ReadFile(clients + "examples/" + name)
		h.must(err)
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".py") {
			mode = 0o755
		}
		h.must(os.WriteFile(h.file(name), []byte(strings.Replace(string(b), `"..:gen-py"`, `"package:gen-py"`, 1)), mode))
	}
	h.must(os.CopyFS(h.file("package", "bifrost"), os.DirFS(clients+"bifrost")))
	h.must(os.Mkdir(h.file("gen-py"), 0o755))
	h.tool(h.dir, "thrift", "--gen", "py", "-out", "gen-py", "bank.thrift")
	h.own()
	t.Setenv("PATH", h.file("bin")+":"+os.Getenv("PATH"))
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")

	dev := h.start("bifrost", "dev", "--dir", h.state, "bank.yaml")
	dev.until("Bank is served by")
	for n := range 2 { // the same key is one deposit
		if got := dev.call("Bank/deposit", `{"account": "ada", "amount": 1000000}`, "first"); got != "1000000" {
			t.Fatalf("deposit: %s", got)
		}
		if n == 0 {
			h.killChild()
			dev.until("Bank is served by")
		}
	}
	if got := dev.call("Bank/transfer", `{"source": "bob", "target": "ada", "amount": 1}`, "none"); !strings.Contains(got, `"NotEnough","fields":{"has":0}`) {
		t.Errorf("an exception that the IDL declares: %s", got)
	}
	// Transfers go on all the time while one process or the other is killed.
	at, stop := dev.calls(), make(chan struct{})
	receipts := &receiptSet{all: map[string]bool{}, more: make(chan struct{}, 1)}
	var callers sync.WaitGroup
	for caller := range 3 {
		callers.Go(func() {
			for n := 0; ; n++ {
				got, err := post(t.Context(), at, "Bank/transfer", `{"source": "ada", "target": "bob", "amount": 7}`, fmt.Sprint("transfer ", caller, " ", n))
				if err != nil || !receipts.add(got) {
					t.Errorf("transfer: %s, %v", got, err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 2 {
		receipts.await(t, 5)
		h.killChild()
		dev.until("Bank is served by")
		receipts.await(t, 5)
		h.must(syscall.Kill(h.program(), syscall.SIGKILL))
		dev.until("Bank is served by")
	}
	receipts.await(t, 5)
	close(stop)
	callers.Wait()
	moved := int64(7 * len(receipts.all))
	if got := dev.accounts("all"); got["ada"] != 1000000-moved || got["bob"] != moved {
		t.Errorf("%d receipts, accounts %v", len(receipts.all), got)
	}
	letters, err := os.ReadFile(h.file("letters.txt"))
	h.must(err)
	for line := range strings.Lines(string(letters)) {
		delete(receipts.all, strings.Fields(line)[0])
	}
	if len(receipts.all) > 0 {
		t.Errorf("no letter has the receipts %v", receipts.all)
	}
	host := h.program()
	child := h.children(host)
	dev.end()
	for _, pid := range append(child, host) {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("process %d is left", pid)
		}
	}
	dev = h.start("bifrost", "dev", "--dir", h.state, "bank.yaml")
	dev.until("Bank is served by")
	if got := dev.accounts("later"); got["ada"] != 1000000-moved || got["bob"] != moved {
		t.Errorf("after a restart of the rack: %v", got)
	}
	dev.end()
}
