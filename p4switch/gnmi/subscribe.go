package gnmi

import (
	"errors"
	"io"
	"slices"
	"time"

	pb "github.com/openconfig/gnmi/proto/gnmi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// How often what is sampled may be told, and is if nobody says.
const (
	leastInterval = 100 * time.Millisecond
	usualInterval = time.Second
)

// subscription is a path that somebody has subscribed to.
type subscription struct {
	path    *pb.Path
	every   time.Duration // 0: on changes
	beats   time.Duration // after so long all is told; 0: never
	repeats bool          // tell what has not changed, too
	due     time.Time     // when it is sampled next
	beat    time.Time
	last    map[string]*pb.Update
}

// Subscribe implements gNMI.
func (s *Server) Subscribe(stream grpc.BidiStreamingServer[pb.SubscribeRequest, pb.SubscribeResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	list := first.GetSubscribe()
	switch {
	case list == nil:
		return status.Error(codes.InvalidArgument, "the first request names what is subscribed to")
	case len(list.GetSubscription()) == 0 || len(list.GetSubscription()) > maxPaths:
		return status.Errorf(codes.InvalidArgument, "%d subscriptions: 1 to %d", len(list.GetSubscription()), maxPaths)
	}
	if err := encodes(list.GetEncoding()); err != nil {
		return err
	}
	t := &teller{s: s, stream: stream, list: list}
	for _, sub := range list.GetSubscription() {
		made, err := t.subscription(sub)
		if err != nil {
			return err
		}
		t.subs = append(t.subs, made)
	}
	changed := s.sw.PortsChanged()
	if err := t.all(list.GetUpdatesOnly()); err != nil {
		return err
	}
	switch list.GetMode() {
	case pb.SubscriptionList_ONCE:
		return nil
	case pb.SubscriptionList_POLL:
		return t.poll()
	default:
		return t.follow(changed)
	}
}

// teller tells a client what it has subscribed to.
type teller struct {
	s      *Server
	stream grpc.BidiStreamingServer[pb.SubscribeRequest, pb.SubscribeResponse]
	list   *pb.SubscriptionList
	subs   []*subscription
}

// subscription checks one.
func (t *teller) subscription(sub *pb.Subscription) (*subscription, error) {
	name := readable(t.list.GetPrefix(), sub.GetPath())
	out := &subscription{path: sub.GetPath(), repeats: true, beats: time.Duration(sub.GetHeartbeatInterval())} //nolint:gosec // checked below
	// Interfaces that come later may be meant. What no interface could have is refused, so that nobody waits in vain.
	model := tree([]Port{{Name: anyName(t.list.GetPrefix(), sub.GetPath()), Index: 1, MTU: 1, MAC: "-"}}, pb.GetRequest_ALL)
	at, err := find(model, t.list.GetPrefix(), sub.GetPath())
	if err != nil {
		return nil, err
	}
	if t.list.GetMode() != pb.SubscriptionList_STREAM {
		return out, nil
	}
	counters := slices.ContainsFunc(at, func(f *found) bool {
		return slices.ContainsFunc(f.leaves(), func(l *found) bool { return l.node.counter })
	})
	switch sub.GetMode() {
	case pb.SubscriptionMode_SAMPLE:
		out.repeats = !sub.GetSuppressRedundant()
		out.every = time.Duration(sub.GetSampleInterval()) //nolint:gosec // checked here
		if out.every == 0 {
			out.every = usualInterval
		}
		if out.every < leastInterval {
			return nil, status.Errorf(codes.InvalidArgument, "%s: sample_interval is %d ns, and %d at least", name, sub.GetSampleInterval(), leastInterval.Nanoseconds())
		}
	case pb.SubscriptionMode_ON_CHANGE:
		out.repeats = false
		if counters {
			return nil, status.Errorf(codes.InvalidArgument, "%s has counters, which change with each packet: sample it", name)
		}
	case pb.SubscriptionMode_TARGET_DEFINED: // as it changes, or each second if it has counters
		out.repeats = false
		if counters {
			out.every = usualInterval
		}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "%s: mode %s", name, sub.GetMode())
	}
	if out.beats < 0 || out.beats > 0 && out.beats < leastInterval {
		return nil, status.Errorf(codes.InvalidArgument, "%s: heartbeat_interval is %d ns, and %d at least", name, sub.GetHeartbeatInterval(), leastInterval.Nanoseconds())
	}
	return out, nil
}

// anyName is the interface that a path names, or some name.
func anyName(prefix, path *pb.Path) string {
	for _, e := range append(append([]*pb.PathElem{}, prefix.GetElem()...), path.GetElem()...) {
		if k := e.GetKey()["name"]; k != "" && k != "*" {
			return k
		}
	}
	return "any"
}

// all tells everything, and that this was all; with quiet, only the latter.
func (t *teller) all(quiet bool) error {
	root, now := tree(t.s.sw.GNMIPorts(), pb.GetRequest_ALL), t.s.now()
	for _, sub := range t.subs {
		sub.due, sub.beat = now.Add(sub.every), now.Add(sub.beats)
		if err := t.tell(sub, root, now, true, quiet); err != nil {
			return err
		}
	}
	return t.stream.Send(&pb.SubscribeResponse{Response: &pb.SubscribeResponse_SyncResponse{SyncResponse: true}})
}

// poll tells everything each time that the client asks.
func (t *teller) poll() error {
	for {
		r, err := t.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case r.GetPoll() == nil:
			return status.Error(codes.InvalidArgument, "a stream that is polled takes polls")
		}
		if err := t.all(false); err != nil {
			return err
		}
	}
}

// follow tells what is sampled when it is due, and what changes as it does, until the client goes. It may ask nothing more.
func (t *teller) follow(changed <-chan struct{}) error {
	asked := make(chan error, 1)
	go func() {
		switch _, err := t.stream.Recv(); {
		case errors.Is(err, io.EOF): // it only listens from now on
		case err != nil:
			asked <- err
		default:
			asked <- status.Error(codes.InvalidArgument, "a stream that follows takes one request")
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := t.s.now()
		next := now.Add(time.Hour)
		for _, sub := range t.subs {
			if sub.every > 0 && sub.due.Before(next) {
				next = sub.due
			}
			if sub.beats > 0 && sub.beat.Before(next) {
				next = sub.beat
			}
		}
		timer.Reset(next.Sub(now))
		moved := false
		select {
		case <-timer.C:
		case <-changed:
			changed, moved = t.s.sw.PortsChanged(), true
		case err := <-asked:
			return err
		case <-t.stream.Context().Done():
			return nil
		}
		now = t.s.now()
		root := tree(t.s.sw.GNMIPorts(), pb.GetRequest_ALL)
		for _, sub := range t.subs {
			sampled := sub.every > 0 && !sub.due.After(now)
			beaten := sub.beats > 0 && !sub.beat.After(now)
			if !sampled && !beaten && (!moved || sub.every > 0) {
				continue
			}
			if sampled {
				sub.due = now.Add(sub.every)
			}
			if beaten {
				sub.beat = now.Add(sub.beats)
			}
			if err := t.tell(sub, root, now, beaten || sampled && sub.repeats, false); err != nil {
				return err
			}
		}
	}
}

// tell tells the leaves of a subscription: all of them, or those that have changed since the last time and those that are gone. With quiet it only notes
// what there is.
func (t *teller) tell(sub *subscription, root *node, now time.Time, all, quiet bool) error {
	at, err := find(root, t.list.GetPrefix(), sub.path)
	if status.Code(err) != codes.NotFound && err != nil {
		return err
	}
	n := &pb.Notification{Timestamp: now.UnixNano(), Prefix: t.list.GetPrefix()}
	is := map[string]*pb.Update{}
	for _, f := range at {
		for _, l := range f.leaves() {
			u := l.update(len(t.list.GetPrefix().GetElem()), t.list.GetEncoding())
			name := readable(nil, u.GetPath())
			is[name] = u
			if old, ok := sub.last[name]; all || !ok || !proto.Equal(old.GetVal(), u.GetVal()) {
				n.Update = append(n.Update, u)
			}
		}
	}
	for name, old := range sub.last {
		if is[name] == nil {
			n.Delete = append(n.Delete, old.GetPath())
		}
	}
	sub.last = is
	if quiet || len(n.GetUpdate())+len(n.GetDelete()) == 0 {
		return nil
	}
	return t.stream.Send(&pb.SubscribeResponse{Response: &pb.SubscribeResponse_Update{Update: n}})
}
