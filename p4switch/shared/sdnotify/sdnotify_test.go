package sdnotify

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(Variable, path)
	if err := Ready(); err != nil {
		t.Fatal(err)
	}
	if err := l.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, set := os.LookupEnv(Variable); set {
		t.Errorf("%s is still %q: children would answer too", Variable, v)
	}
	if err := Ready(); err != nil {
		t.Errorf("a second time, with nobody asking: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket remains: %v", err)
	}
}

// Other assignments are not readiness; one among several lines is.
func TestOtherLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(s string) {
		if _, err := conn.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	send("STATUS=READY=1 soon")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("ready by a status line: %v", err)
	}
	send("STATUS=up\nREADY=1\nMAINPID=7\n")
	if err := l.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestNobodyListens(t *testing.T) {
	t.Setenv(Variable, filepath.Join(t.TempDir(), "nothing"))
	if err := Ready(); err == nil {
		t.Error("no error without a listener")
	}
}
