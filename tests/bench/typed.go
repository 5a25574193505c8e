package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairway-edge/fairway/internal/edge"
)

// The ways of benchTyped: the same question to the same model on the same node, as what the node would ask by itself, and as a typed run.
const (
	rawChat  = "raw /api/chat"
	typedRun = "typed run"

	typedText = "Please find attached our invoice INV-2024-117 of the third of May for the repair of the pump. It is payable within thirty days. "
	typedBody = `{"operator":{"kind":"schema","model":"bench","prompt":"Which invoice is it?","schema":{"type":"object","properties":{"number":{"type":"string"}},"required":["number"],"additionalProperties":false}},"input":{"mail":%q},"placement":"edge"}`
)

// typedAnswer is what the upstream says to who asks for JSON.
var typedAnswer = []byte(`{"model":"bench","created_at":"2026-01-01T00:00:00Z","message":{"role":"assistant","content":"{\"number\":\"INV-2024-117\"}"},"done":true,"done_reason":"stop","prompt_eval_count":7,"eval_count":16}`)

// benchTyped measures what a typed run costs over the raw request that it ends in.
func benchTyped(ctx context.Context, b *bed, t *table) error {
	request := fmt.Sprintf(typedBody, strings.Repeat(typedText, 8))
	req, err := edge.ParseRequest([]byte(request))
	if err != nil {
		return err
	}
	raw, err := req.Operator.ChatBody(edge.Ollama, req.Input, false)
	if err != nil {
		return err
	}
	fw := b.path("fairway")
	ways := []*path{
		{name: rawChat, url: fw.url, procs: fw.procs, body: string(raw)},
		{name: typedRun, url: fw.url, procs: fw.procs, body: request, at: "/api/v1/edge/runs"},
	}
	for _, clients := range []int{1, 32} {
		err := inRandomOrder(ways, func(p *path) error {
			rps, p50, p99, cpu, err := requests(ctx, p, clients)
			t.addTyped(fmt.Sprintf("%d clients: requests/s", clients), p.name, rps)
			t.addTyped(fmt.Sprintf("%d clients: p50 µs", clients), p.name, p50)
			t.addTyped(fmt.Sprintf("%d clients: p99 µs", clients), p.name, p99)
			t.addTyped(fmt.Sprintf("%d clients: CPU µs a request, gateway and node", clients), p.name, cpu)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *table) addTyped(row, way string, v float64) {
	t.typed = appendNew(t.typed, row)
	t.sample("typed: "+row, way, v)
}

// typedTable is what a typed run costs, as a table of its own.
func (t *table) typedTable(b *strings.Builder) {
	if len(t.typed) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## Typed runs\n\nThe same question of about 1 KiB to the same model: as the raw request that a node would send, and as a typed run with a schema. It may take 1 ms longer and 15 %% more CPU.\n\n")
	fmt.Fprintf(b, "| measure | %s | %s | difference | ratio |\n|---|---|---|---|---|\n", rawChat, typedRun)
	for _, row := range t.typed {
		chat, _ := t.median("typed: "+row, rawChat)
		run, _ := t.median("typed: "+row, typedRun)
		fmt.Fprintf(b, "| %s | %s | %s | %s | %.2f |\n", row, figure(chat), figure(run), signed(run-chat), run/chat)
	}
}
