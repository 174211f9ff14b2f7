package switches

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// Options say how long to measure.
type Options struct {
	// Rules are how many rules of who may allocate where are loaded beside those in use.
	Rules int
	// Stateful has the P4 switches run a program with a register, a meter and a multicast
	// group in the way of each packet, instead of Bifröst's; no rules change then.
	Stateful bool
	// Rounds is how often everything is measured of every contender; in a round it
	// has RoundTrip for round trips, Stream for TCP, twice Flood for datagrams, and
	// four times Write for updates of rules.
	Rounds                          int
	RoundTrip, Stream, Flood, Write time.Duration
	// Progress, if not nil, is told what is being done.
	Progress io.Writer
}

// Result is what was measured, by contender. Times are in microseconds, rates in
// gigabits, packets or updates a second; all are medians unless they tell.
type Result struct {
	Rules     int                 `json:"rules"`
	RoundTrip map[string]Quantile `json:"round_trip_us"`
	TCP       map[string]float64  `json:"tcp_gbit_s"`
	// UDP is of datagrams that fill a frame, Packets of small ones. Both count what
	// arrives while one CPU sends as fast as it can.
	UDP     map[string]float64 `json:"udp_gbit_s"`
	Packets map[string]float64 `json:"packets_s"`
	// Updates is how many rules a second come into force by Writes of one each,
	// Batched by Writes of a hundred. Revoke is the time of a Write that deletes
	// three.
	Updates map[string]float64  `json:"updates_s"`
	Batched map[string]float64  `json:"batched_updates_s"`
	Revoke  map[string]Quantile `json:"revoke_us"`
	Effect  map[string]Effect   `json:"effect"`
	// Ratios are of pairs of contenders.
	Ratio       map[string]Ratio `json:"ratio"` // of round trips
	TCPRatio    map[string]Ratio `json:"tcp_ratio"`
	PacketRatio map[string]Ratio `json:"packet_ratio"`
}

// Ratio is what one contender has by what another one has.
type Ratio struct {
	// Value is of the medians that the tables show.
	Value float64 `json:"value"`
	// Low and High are the extremes over the rounds, in each of which both were measured a moment apart.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// mostSpread is how many times as high as the lowest ratio of a round the highest may be, for the ratio to tell anything.
const mostSpread = 1.5

// Tells reports whether the rounds agree. If they do not, the machine was busy with something else.
func (r Ratio) Tells() bool { return r.Low > 0 && r.High <= mostSpread*r.Low }

func (r Ratio) String() string {
	doubt := ""
	if !r.Tells() {
		doubt = "?"
	}
	return fmt.Sprintf("%.2f%s (%.2f to %.2f)", r.Value, doubt, r.Low, r.High)
}

// Quantile is the median and the 99th percentile.
type Quantile struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// names are the contenders in the order in which they are told of.
var names = []string{"cable", "bridge", "ebpf", "go", "ovs", "bmv2"}

// compared are the pairs whose ratios are told.
var compared = [][2]string{
	{"ebpf", "bridge"}, {"ebpf", "cable"}, {"ebpf", "ovs"}, {"ebpf", "bmv2"}, {"go", "bridge"}, {"go", "ebpf"}, {"go", "ovs"}, {"go", "bmv2"}, {"bridge", "cable"},
}

// samples is what a contender has measured in all rounds.
type samples struct {
	trips             [][]time.Duration // of each round
	tcp, udp, packets []float64         // bytes, datagrams and datagrams a second
	writes            []writes
}

// writes is what was measured of P4Runtime's Write in a round.
type writes struct {
	single, batched float64 // updates a second, one and many in a Write
	revoke          []time.Duration
	effect          Effect
}

// Effect tells whether answered deletions were in force.
type Effect struct {
	// Deletions were answered while a host sent as fast as it could. Late is how
	// many packets were forwarded by the deleted rule after its answer, of Packets
	// that were judged in all.
	Deletions int   `json:"deletions"`
	Packets   int64 `json:"packets"`
	Late      int64 `json:"late"`
}

// The payloads of datagrams in bytes: small ones, for round trips and packets a
// second, and such as fill a frame.
const (
	smallDatagram = 64
	fullDatagram  = mtu - 48
)

// mtu is the hosts' MTU, Ethernet's own.
const mtu = 1500

// summary computes the result.
func summary(rules int, all map[string]*samples) Result {
	r := Result{
		Rules: rules, RoundTrip: map[string]Quantile{}, TCP: map[string]float64{}, UDP: map[string]float64{}, Packets: map[string]float64{},
		Updates: map[string]float64{}, Batched: map[string]float64{}, Revoke: map[string]Quantile{}, Effect: map[string]Effect{},
	}
	for name, s := range all {
		r.RoundTrip[name] = quantile(slices.Concat(s.trips...))
		r.TCP[name] = median(s.tcp) * 8 / 1e9
		r.UDP[name] = median(s.udp) * 8 * fullDatagram / 1e9
		r.Packets[name] = median(s.packets)
		if len(s.writes) > 0 {
			r.addWrites(name, s.writes)
		}
	}
	r.Ratio = ratios(all, func(name string) float64 { return r.RoundTrip[name].P50 }, func(s *samples) (each []float64) {
		for _, round := range s.trips {
			each = append(each, quantile(round).P50)
		}
		return each
	})
	r.TCPRatio = ratios(all, func(name string) float64 { return r.TCP[name] }, func(s *samples) []float64 { return s.tcp })
	r.PacketRatio = ratios(all, func(name string) float64 { return r.Packets[name] }, func(s *samples) []float64 { return s.packets })
	return r
}

func (r *Result) addWrites(name string, rounds []writes) {
	var single, batched []float64
	var revoke []time.Duration
	var e Effect
	for _, w := range rounds {
		single, batched, revoke = append(single, w.single), append(batched, w.batched), append(revoke, w.revoke...)
		e.Deletions += w.effect.Deletions
		e.Packets += w.effect.Packets
		e.Late += w.effect.Late
	}
	r.Updates[name], r.Batched[name], r.Revoke[name], r.Effect[name] = median(single), median(batched), quantile(revoke), e
}

// ratios are of all pairs that are compared and there: whole is what a table has of a contender, rounds what it had in each
// round.
func ratios(all map[string]*samples, whole func(name string) float64, rounds func(*samples) []float64) map[string]Ratio {
	out := map[string]Ratio{}
	for _, c := range compared {
		if all[c[0]] == nil || all[c[1]] == nil || whole(c[1]) == 0 {
			continue
		}
		var each []float64
		y := rounds(all[c[1]])
		for i, x := range rounds(all[c[0]]) {
			if i < len(y) && y[i] > 0 {
				each = append(each, x/y[i])
			}
		}
		if len(each) > 0 {
			out[c[0]+"/"+c[1]] = Ratio{whole(c[0]) / whole(c[1]), slices.Min(each), slices.Max(each)}
		}
	}
	return out
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func quantile(d []time.Duration) Quantile {
	n := len(d)
	if n == 0 {
		return Quantile{}
	}
	slices.Sort(d)
	return Quantile{micros(d[n/2]), micros(d[n*99/100])}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Print writes the result as tables.
func (r Result) Print(w io.Writer) error {
	p := &printer{w: w}
	p.line("%-8s %9s %9s %11s %11s %11s", "", "p50 µs", "p99 µs", "TCP Gbit/s", "UDP Gbit/s", "packets/s")
	for _, name := range names {
		if q, ok := r.RoundTrip[name]; ok {
			p.line("%-8s %9.1f %9.1f %11.2f %11.2f %11.0f", name, q.P50, q.P99, r.TCP[name], r.UDP[name], r.Packets[name])
		}
	}
	p.line("")
	p.line("%-8s %9s %9s %11s %11s %22s", "P4Runtime", "revoke µs", "p99 µs", "updates/s", "by hundreds", "late packets")
	for _, name := range names {
		if e, ok := r.Effect[name]; ok {
			p.line("%-8s %9.0f %9.0f %11.0f %11.0f %22s", name, r.Revoke[name].P50, r.Revoke[name].P99, r.Updates[name], r.Batched[name],
				fmt.Sprintf("%d of %d deletions", e.Late, e.Deletions))
		}
	}
	p.line("")
	p.line("%-14s %-22s %-22s %-22s", "ratios", "round trip", "TCP", "packets")
	doubtful := false
	for _, c := range compared {
		key := c[0] + "/" + c[1]
		if trip, ok := r.Ratio[key]; ok {
			tcp, packets := r.TCPRatio[key], r.PacketRatio[key]
			p.line("%-14s %-22s %-22s %-22s", key, trip, tcp, packets)
			doubtful = doubtful || !trip.Tells() || !tcp.Tells() || !packets.Tells()
		}
	}
	p.line("")
	p.line("A ratio is of the figures above; in brackets are the lowest and the highest of a round.")
	if doubtful {
		p.line("Where it says ?, the rounds differ by more than half: the machine was too busy to tell. Run it again when nothing else does.")
	}
	return p.err
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", a...)
	}
}
