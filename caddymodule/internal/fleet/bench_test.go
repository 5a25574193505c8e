package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// crowd is a fleet in which each node holds a model of its own and one that all hold.
func crowd(b *testing.B, nodes int) *Fleet {
	f := newFleet(b)
	for i := range nodes {
		join(b, f, fmt.Sprint("n", i), offer(4, "m", fmt.Sprint("own", i)))
	}
	return f
}

func BenchmarkAcquire(b *testing.B) {
	for _, nodes := range []int{1, 100, 1000} {
		f := crowd(b, nodes)
		common, rare, pinned := want(b, "m"), want(b, "own0"), want(b, "m")
		pinned.Node = "n0"
		common.Since, rare.Since = "0.1.24", "0.1.24"
		for _, bm := range []struct {
			name string
			want *Want
		}{{"all-hold-it", common}, {"one-holds-it", rare}, {"pinned", pinned}} {
			b.Run(fmt.Sprintf("%s/%d", bm.name, nodes), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					p, err := f.Acquire(context.Background(), bm.want, now)
					if err != nil {
						b.Fatal(err)
					}
					p.Release()
				}
			})
		}
	}
}

// BenchmarkNoPlace is an Acquire that fails: all who hold the model are busy, or nobody holds it, among nodes that have just come or were here before.
func BenchmarkNoPlace(b *testing.B) {
	for _, nodes := range []int{1, 100, 1000} {
		f := crowd(b, nodes)
		busy := want(b, "m")
		for range 4 * nodes {
			acquire(b, f, busy)
		}
		for _, bm := range []struct {
			name string
			want *Want
			age  time.Duration
		}{{"busy", busy, 0}, {"unknown-to-new-nodes", want(b, "nope"), 0}, {"unknown", want(b, "nope"), comingUp}} {
			b.Run(fmt.Sprintf("%s/%d", bm.name, nodes), func(b *testing.B) {
				f.cfg.Now = func() time.Time { return time.Now().Add(bm.age) }
				b.ReportAllocs()
				for b.Loop() {
					if _, err := f.Acquire(context.Background(), bm.want, now); err == nil {
						b.Fatal("a place")
					}
				}
			})
		}
	}
}

// BenchmarkLine is one run's end while 512 wait at 1,000 busy nodes, and one more that comes: for what all want alike, and for runs that
// were refused somewhere and so want each something else.
func BenchmarkLine(b *testing.B) {
	const nodes, waiters = 1000, 512
	q := Queue{Depth: 2 * waiters, Wait: time.Minute}
	for _, alike := range []bool{true, false} {
		b.Run(fmt.Sprintf("alike=%v", alike), func(b *testing.B) {
			f := crowd(b, nodes)
			var places []*Place
			for range 4 * nodes {
				places = append(places, acquire(b, f, want(b, "m")))
			}
			queue := func() *waiter {
				w := want(b, "m")
				if !alike {
					w.Out = map[TargetRef]bool{{"n0", "ollama", 1}: true}
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				_, wt, _, err := f.admit(w, q)
				if err != nil {
					b.Fatal(err)
				}
				return wt
			}
			var line []*waiter
			for range waiters {
				line = append(line, queue())
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				places[i%len(places)].Release()
				places[i%len(places)] = <-line[0].place
				line = append(line[1:], queue())
				i++
			}
		})
	}
}

// BenchmarkTell is a tick of a connection between gateways: with nothing changed, and with the credits of one node.
func BenchmarkTell(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		f := crowd(b, nodes)
		k := Told{Peer: "gw2"}
		if n := len(f.Tell(&k)); n != nodes {
			b.Fatalf("%d messages", n)
		}
		b.Run(fmt.Sprint("nothing/", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if len(f.Tell(&k)) != 0 {
					b.Fatal("something")
				}
			}
		})
		pinned := want(b, "m")
		pinned.Node = "n0"
		b.Run(fmt.Sprint("one/", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				acquire(b, f, pinned).Release()
				if len(f.Tell(&k)) != 1 {
					b.Fatal("not one")
				}
			}
		})
	}
}

// BenchmarkPeerNodes is what another gateway's tick brings: the credits of one node of many; and all of them, when it has just come.
func BenchmarkPeerNodes(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		from, to := crowd(b, nodes), gatewayFleet(b, "gw2")
		w := newWay(from, to)
		all := from.Tell(w.told)
		hear(b, to, w.peer, all...)
		acquire(b, from, want(b, "own0"))
		one := from.Tell(w.told)
		b.Run(fmt.Sprint("one/", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				hear(b, to, w.peer, one...)
			}
		})
		b.Run(fmt.Sprint("all/", nodes), func(b *testing.B) {
			for b.Loop() {
				to.PeerLeft(w.peer)
				hear(b, to, w.peer, all...)
			}
		})
	}
}
