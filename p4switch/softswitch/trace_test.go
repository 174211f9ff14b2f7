package softswitch

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"
)

// At level trace the log tells which tables a packet met, and what they did.
func TestTrace(t *testing.T) {
	for _, level := range []slog.Level{LevelTrace, slog.LevelDebug} {
		var log bytes.Buffer
		s, err := New(Config{DeviceID: 1, CPUPort: sample.CPUPort, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))})
		if err != nil {
			t.Fatal(err)
		}
		info := &configv1.P4Info{}
		if err := prototext.Unmarshal(sample.Info, info); err != nil {
			t.Fatal(err)
		}
		if err := s.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: sample.JSON}); err != nil {
			t.Fatal(err)
		}
		if err := s.Attach(1, func([]byte) {}); err != nil {
			t.Fatal(err)
		}
		s.Input(1, datagram(7, "x"))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"SampleIngress.identity", "hit=false", "packet=1"} {
			if strings.Contains(log.String(), want) != (level == LevelTrace) {
				t.Errorf("level %v: %q is in the log: %v", level, want, level != LevelTrace)
			}
		}
	}
}
