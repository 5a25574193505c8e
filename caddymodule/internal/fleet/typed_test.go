package fleet

import "testing"

// TestStandingCountsNodes: a node with two targets that hold a model is one node, and stands as the nearer of them.
func TestStandingCountsNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	far, near, away := offer(1, "m"), offer(2, "m"), offer(4, "m")
	near.Name, away.Name = "second", "third"
	near.Loaded, away.Reachable = loaded("m"), false
	join(t, f, "a", far, near, away)
	join(t, f, "b", offer(1, "m"))
	got := f.Standing(want(t, "m"))
	if len(got) != 2 {
		t.Fatalf("%d nodes of two: %+v", len(got), got)
	}
	warm := 0
	for _, s := range got {
		if s.Ready && s.Loaded && s.Free == 2 {
			warm++
		}
	}
	if warm != 1 {
		t.Errorf("%+v", got)
	}
}
