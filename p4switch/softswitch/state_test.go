package softswitch

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestReadState: a client is told ports, tables with their entries and lookups, and the program's graph; and that there is no program yet.
func TestReadState(t *testing.T) {
	_, empty := tracedSwitch(t, true)
	st, err := ReadState(t.Context(), empty)
	if err != nil || st.Executor != "" || st.Program != 0 || len(st.Ports) != 1 || len(st.Tables) != 0 {
		t.Errorf("without a program: %+v, %v", st, err)
	}
	if _, err := ReadProgram(t.Context(), empty); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a program: %v", err)
	}
	s, conn := tracedSwitch(t, false)
	s.Input(1, datagram(7, "x"))
	st, err = ReadState(t.Context(), conn)
	if err != nil || st.Executor != "Go" || st.Program != 1 || len(st.Ports) != 1 || st.Ports[0].Port != 1 || !st.Ports[0].Up || st.Ports[0].RxPackets != 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	known, lookups := false, uint64(0)
	for _, table := range st.Tables {
		lookups += table.Hits + table.Misses
		known = known || table.Table == "SampleIngress.identity" && table.Hits+table.Misses == 1
	}
	if !known || lookups == 0 {
		t.Errorf("tables %+v", st.Tables)
	}
	p, err := ReadProgram(t.Context(), conn)
	if err != nil || p.Number != 1 || len(p.Graph.Parts) != 3 || p.Graph.Parts[0].Rows[p.Graph.Parts[0].Start].Name != "start" {
		t.Errorf("%+v, %v", p, err)
	}
}
