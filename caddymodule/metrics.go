package caddymodule

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/lease"
)

// meters count what happens. They are made once a process and registered with every
// config's registry, so that a reload resets nothing.
type meters struct {
	runs          *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
	firstByte     *prometheus.HistogramVec
	queueWait     prometheus.Histogram
	tokens        *prometheus.CounterVec
	usageMismatch prometheus.Counter
	store         *prometheus.HistogramVec
}

// storeBuckets reach from a round trip in one machine to the most that a call may take, in seconds.
var storeBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .2, .3}

// buckets reach from an answer out of memory to a long generation, in seconds.
var buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

var theMeters = sync.OnceValue(func() *meters {
	labels := []string{"route", "adapter", "kind", "outcome", "code"}
	return &meters{
		runs:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairway_runs_total", Help: "Requests that were answered, by how they ended."}, labels),
		seconds:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fairway_run_seconds", Help: "Time from a request to the end of its answer.", Buckets: buckets}, []string{"route", "adapter", "kind", "outcome"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fairway_first_byte_seconds", Help: "Time from a request to the head of its answer, waiting included.", Buckets: buckets}, []string{"route", "adapter", "kind"}),
		queueWait: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fairway_queue_wait_seconds", Help: "Time that a run waited for a node.", Buckets: buckets}),
		tokens:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairway_tokens_total", Help: "Tokens as providers counted them."}, []string{"route", "direction"}),
		usageMismatch: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairway_usage_mismatch_total", Help: "Runs whose node counted other tokens than stood in the answer.",
		}),
		store: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fairway_store_seconds", Help: "Time of a call to a shared store, by its kind.", Buckets: storeBuckets}, []string{"op"}),
	}
})

func (m *meters) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.runs, m.seconds, m.firstByte, m.queueWait, m.tokens, m.usageMismatch, m.store, theGauges()}
}

// registerMetrics adds everything to a config's registry. Several apps of one
// process never meet in one registry, but a config may be provisioned twice.
func registerMetrics(reg prometheus.Registerer) error {
	for _, c := range theMeters().collectors() {
		if err := reg.Register(c); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			return err
		}
	}
	return nil
}

// knownCodes are the values that the label code may have. A node can put any word
// into a refusal, and a label must not take it.
var knownCodes = func() map[string]bool {
	known := map[string]bool{"": true}
	for _, c := range []string{
		"no_such_model", "forbidden", "unauthorized", "queue_full", "queue_timeout", "no_node", "node_lost", "node_replaced", "node_stalled",
		"client_stalled", "deadline_exceeded", "canceled", "ambiguous_body", "credential_unavailable", "credential_denied", "credential_rejected",
		"provider_unreachable", "bad_provider_response", "store_unavailable", "bad_request", "node_required", "unsupported_encoding", "too_early",
		"run_not_found", "body_too_large", "rate_limited", "draining", "not_found", "internal",
		// what a node may say of a run that it did not take
		"node_busy", "stale_generation", "unknown_target", "not_allowed", "provider_answered", "bad_run", "client_body_error", "protocol_order",
	} {
		known[c] = true
	}
	return known
}()

// observeStore times a call to a shared store; the names are those of its scripts.
func observeStore(op string, took time.Duration) {
	theMeters().store.WithLabelValues(op).Observe(took.Seconds())
}

// countRun counts a request that was answered.
func countRun(a *gateway.Account) {
	m, code := theMeters(), a.Code
	if !knownCodes[code] {
		code = "other"
	}
	m.runs.WithLabelValues(a.Route, a.Adapter, a.Kind, a.Outcome, code).Inc()
	m.seconds.WithLabelValues(a.Route, a.Adapter, a.Kind, a.Outcome).Observe(a.Total.Seconds())
	if a.FirstByte > 0 {
		m.firstByte.WithLabelValues(a.Route, a.Adapter, a.Kind).Observe(a.FirstByte.Seconds())
	}
	if a.Attempts > 0 {
		m.queueWait.Observe(a.Queued.Seconds())
	}
	if a.InputTokens+a.OutputTokens > 0 {
		m.tokens.WithLabelValues(a.Route, "input").Add(float64(a.InputTokens))
		m.tokens.WithLabelValues(a.Route, "output").Add(float64(a.OutputTokens))
	}
	if a.UsageMismatch {
		m.usageMismatch.Inc()
	}
}

// gauges reads the hubs when it is asked: nothing to reset, no stale labels.
type gauges struct {
	nodes, sessions, lanes, inFlight, queue, credits, fenced, leases, storeUp *prometheus.Desc
}

var theGauges = sync.OnceValue(func() *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fairway_"+name, help, labels, nil)
	}
	return &gauges{
		nodes:    desc("nodes", "Nodes by state.", "state"),
		sessions: desc("sessions", "Sessions with nodes."),
		lanes:    desc("lanes", "QUIC connections of those sessions."),
		inFlight: desc("runs_in_flight", "Runs in flight, those that wait included."),
		queue:    desc("queue_depth", "Runs that wait for a node.", "route"),
		credits:  desc("credits", "Inference runs that a target would take now.", "node", "target"),
		fenced:   desc("fenced_frames_total", "What came too late or from the wrong session and was dropped.", "reason"),
		storeUp:  desc("store_up", "Whether a shared store answers; without one there is no such series."),
		leases:   desc("leases_total", "Permissions to use a credential: issued, opened on a node, or refused and why.", "result"),
	}
})

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.nodes, g.sessions, g.lanes, g.inFlight, g.queue, g.credits, g.fenced, g.leases, g.storeUp} {
		ch <- d
	}
}

// otherResult is what is none of leaseResults; the hub uses the same word.
const otherResult = "lease_other"

// leaseResults are the values that the label result may have. A code comes from a
// node, and a label must not take any word that one says.
var leaseResults = func() map[string]bool {
	known := map[string]bool{
		"issued": true, "opened": true,
		"lease_store_unavailable": true, "lease_not_issued": true, "lease_audit_unavailable": true, // the gateway's own
	}
	for _, c := range []lease.Code{
		lease.CodeMalformed, lease.CodeUnknownKey, lease.CodeBadSignature, lease.CodeWrongRecipient, lease.CodeStaleGeneration,
		lease.CodeWrongConnection, lease.CodeTTLExcessive, lease.CodeNotYetValid, lease.CodeExpired, lease.CodeMismatch, lease.CodeStaleProjection,
		lease.CodeRevoked, lease.CodeDisabled, lease.CodeReplayed, lease.CodeReplayCacheFull, lease.CodeOpenFailed, lease.CodePayloadInvalid,
		lease.CodeClockUnavailable,
	} {
		known[string(c)] = true
	}
	return known
}()

// nodeStates are always there, so that a state that nobody is in shows as 0.
var nodeStates = []string{"registered", "ready", "suspect", "draining", "gone"}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	c := takeCensus(liveHubs())
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for _, s := range nodeStates {
		gauge(g.nodes, c.States[s], s)
	}
	gauge(g.sessions, c.Sessions)
	gauge(g.lanes, c.Lanes)
	gauge(g.inFlight, c.InFlight)
	gauge(g.queue, c.Waiting, gateway.DefaultRoute)
	if c.storeUp != nil {
		up := 0
		if *c.storeUp {
			up = 1
		}
		gauge(g.storeUp, up)
	}
	for k, n := range c.credits {
		gauge(g.credits, n, k.node, k.target)
	}
	for result := range leaseResults { // all of them, so that the first of a kind is seen as a rise
		ch <- prometheus.MustNewConstMetric(g.leases, prometheus.CounterValue, float64(c.leases[result]), result)
	}
	if n, ok := c.leases[otherResult]; ok {
		ch <- prometheus.MustNewConstMetric(g.leases, prometheus.CounterValue, float64(n), otherResult)
	}
	for reason, n := range c.fenced {
		ch <- prometheus.MustNewConstMetric(g.fenced, prometheus.CounterValue, float64(n), reason)
	}
}

var _ prometheus.Collector = (*gauges)(nil)
