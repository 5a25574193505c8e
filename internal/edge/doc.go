// Package edge is the contract of typed runs: what a run is asked, what it may answer, and every rule between the two.
//
// An application that acts on what a model says does not want a stream of words. It wants a decision with a type, checked against a schema,
// grounded in what it gave, and an honest "unavailable" where nothing could be asked. That is a [ModelResult]. A run ends in exactly one, whatever
// happened: never in a bare string, and past the boundary of this package never in an error or a panic because of what a model, a provider
// or a network did.
//
// The package is used on both sides. The gateway and the node hold a run to the same rules with the same code; a node does so also with the
// gateway away. It opens no socket and reads no clock, and keeps nothing but the last schemas, compiled.
//
// # A run, step by step
//
//  1. [ParseRequest] reads the body of POST /api/v1/edge/runs, strictly: an error names the field. What it makes of "operator" is an
//     [Operator], compiled and bounded: a prompt with a JSON Schema, a [Contract], or a goal. A node that runs a contract from a file uses
//     [ParseContract] and [ContractOperator].
//  2. [Place] decides where it runs, by a table, from what is known of the nodes and the cloud, and says why.
//  3. The gates: [Redaction] on the input, [Budget] with [Operator.Tokens], and, where the request names an action, [Tools] and [Approval]. A no
//     is a [Denial], and [Denied] makes a result of it. [Gates] are all of these in their order.
//  4. [Operator.ChatBody] is the request to the provider, which is held to [Operator.Format] while it generates.
//  5. A [Transcript] reads the provider's answer as it comes.
//  6. [Operator.Judge] makes the result: it parses what was said, validates it, and looks every value up again.
//  7. Where there was no answer, [Fail] maps the code of the gateway, the tunnel or a lease, [TransportCode] and [StatusCode] those of a
//     provider, and [TimedOut] is the deadline. [Retry] and [Cycle] say whether there is another attempt.
//  8. [NewAnswer] completes the result with its disposition and its [IdempotencyKey]; [Events] writes it as the last of a stream.
//
// # Grounding
//
// A verbatim value has to be in one input text: after control characters are taken out of it and white space is collapsed in both, as a
// case-sensitive substring. A value of one or two letters has to stand there as a word of its own, for as part of a word it would be in nearly
// every text. What is in none becomes the contract's sentinel, and so does a value of which a redaction left masks only. A closed-set value has to be one
// of the author's labels, in any case and spacing; the output has the author's spelling. Lengths and offsets are Unicode code points.
//
// # The cloud
//
// A goal runs in the cloud, as a job: [GoalBody] submits it, [ParseJob] reads what the cloud says of it, [Job.Step] is what it asks for next, and
// [Job.Result] the result. [WorkflowRequest] makes the calls on workflows of one's own, and [PermitWorkflow] says what is one.
//
// # Schemas
//
// Schemas are JSON Schema 2020-12, validated by github.com/santhosh-tekuri/jsonschema. They come from callers, and so are read by this package first:
// unknown keywords are refused, references stay in the document, regular expressions run in linear time ("format" is an annotation, as the
// specification has it), and what checking an answer may cost is worked out and bounded before it is done; see schemacost.go. The library loads
// nothing by itself, from network or disk.
//
// # Trust
//
// Requests, contracts, schemas, results and what models and providers say are hostile until parsed. Every parser has bounds on bytes, depth and
// number of values, refuses what two readers could read differently (a member given twice, numbers out of range, text after the value),
// and has a fuzz target. Errors and details name places and rules, and repeat nothing of what was there beyond a short name.
package edge
