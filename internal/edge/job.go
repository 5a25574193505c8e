package edge

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// JobVersion stands for the version of a workflow whose job names no attempt.
const JobVersion = "cloud"

// MaxJob is the most bytes that the cloud may need to describe a job: its message, escaped, and what we do not read.
const MaxJob = maxAnswer + 1<<20

var jobLimits = limits{bytes: MaxJob, depth: maxAnswerDepth, values: maxAnswerValues}

// JobStep is what a job's status asks of who waits for it.
type JobStep int

// The steps.
const (
	JobWorks  JobStep = iota // wait
	JobReady                 // confirm it once, or it waits forever
	JobParked                // it waits for a person: for slots, or for a look at its preview. Nobody here answers for one
	JobEnded                 // [Job.Result] is its end
)

// jobSteps are the steps of the thirteen statuses. A status that is not among them is taken for one of a later version that works.
var jobSteps = map[string]JobStep{
	"draft": JobWorks, "created": JobWorks, "analyzing": JobWorks, "confirmed": JobWorks, "queued": JobWorks, "executing": JobWorks,
	"ready":         JobReady,
	"slots_pending": JobParked, "ready_with_preview": JobParked,
	"completed": JobEnded, "partial": JobEnded, "failed": JobEnded, "cancelled": JobEnded,
}

// Job is what the cloud says of a goal's job.
type Job struct {
	ID       string
	Status   string
	Progress string // as written; only whether it changes counts

	attempt string
	message string
	failure []string // why it failed, in words that are codes or numbers
}

// ParseJob reads a job. Members that it does not know are skipped, and so are those of another type than they should be, but for the three
// that everything rests on: the id, the status and the message.
func ParseJob(data []byte) (Job, error) {
	n, refused := readJSON(data, jobLimits)
	if refused != nil {
		return Job{}, under("job", refused)
	}
	f := read(n)
	j := Job{ID: f.needText("jobSpecId", maxName), Status: f.needText("status", 64), message: f.text("agentMessage", jobLimits.bytes)}
	switch {
	case f.err != nil:
	case !JobID(j.ID):
		f.fail("jobSpecId", "is not an id of letters, digits, - and _")
	case !plainCode(j.Status):
		f.fail("status", "is not a status")
	}
	if f.err != nil {
		return Job{}, under("job", f.err)
	}
	j.Progress = brief(n.members["progress"], jsonNumber)
	if v := n.members["attemptId"]; v != nil && v.kind == jsonText {
		j.attempt = v.text
	}
	j.failure = failureWords(n)
	return j, nil
}

// failureWords are the code, the ceiling with its operands, and the advice. An operand that is null is unknown, which is not zero.
func failureWords(n *node) (words []string) {
	add := func(label string, v *node, kind jsonKind) {
		if w := brief(v, kind); w != "" {
			words = append(words, label+w)
		}
	}
	add("", n.members["errorCode"], jsonText)
	if d := n.members["errorDetail"]; d != nil && d.kind == jsonObject {
		add("", d.members["reason"], jsonText)
		add("limit ", d.members["limit"], jsonNumber)
		add("reached ", d.members["reached"], jsonNumber)
	}
	if a := n.members["suggestedAction"]; a != nil && slices.Contains([]string{"retry", "upgrade", "login", "contact_support"}, a.text) {
		words = append(words, "suggested "+a.text)
	}
	return slices.Compact(words)
}

// brief gives a value that is a code in capitals or a number, and "" for any other: an error in a provider's own words may repeat the input.
func brief(v *node, kind jsonKind) string {
	if v == nil || v.kind != kind || kind == jsonText && !(len(v.text) <= 64 && onlyOf(v.text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")) {
		return ""
	}
	return v.text
}

const idLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

func onlyOf(s, letters string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(letters, r) })
}

// JobID reports whether s may be the id of a job. It goes into a path.
func JobID(s string) bool { return s != "" && len(s) <= maxName && onlyOf(s, idLetters) }

// Step is what the job's status asks for.
func (j Job) Step() JobStep { return jobSteps[j.Status] }

// State is how far the job has come, as progress events say it.
func (j Job) State() RunState {
	if j.Status == "executing" {
		return Generating
	}
	return Queued
}

// Result is the result of a job that has ended or is parked, by the table of the cloud placement: a message is a success that cites the job,
// no message is uncertain, and so is every other end but a failure. It is never invalid: what a workflow says is judged where it runs.
// O says how long it took, and which workflow it was.
func (j Job) Result(o Origin) ModelResult {
	o.ModelVersion = JobVersion
	if !badName(j.attempt) {
		o.ModelVersion = j.attempt
	}
	switch j.Status {
	case "completed", "partial":
		if strings.TrimFunc(j.message, isSpace) == "" {
			return Doubtful(o, "the job is "+j.Status+" and says nothing")
		}
		output := json.RawMessage(appendString(nil, j.message))
		if len(output) > maxAnswer {
			return unparseable(o, "the answer is too long")
		}
		return Succeeded(o, output, Evidence{Source: "convilyn://jobs/" + j.ID})
	case "failed":
		r := Fail(o, string(providerFailed))
		r.DegradeDetail = short(strings.Join(append([]string{r.DegradeDetail + ": the job failed"}, j.failure...), ", "), maxDetail)
		return r
	}
	return Doubtful(o, "the job stopped: "+j.Status)
}

// errNoWorkflow is the caller's fault.
var errNoWorkflow = errors.New("not the id of a workflow, uw_…")

// GoalBody is the body that submits a workflow of one's own with its slots. Slots without a value are left out; without any, null stands for
// the list.
func GoalBody(workflow string, slots Input) ([]byte, error) {
	if !workflowID(workflow) {
		return nil, errNoWorkflow
	}
	type slot struct {
		ID    string `json:"slotId"`
		Value string `json:"value"`
	}
	var answers []slot
	for _, s := range slots {
		if s.Text != "" {
			answers = append(answers, slot{s.Name, s.Text})
		}
	}
	return plainJSON(struct {
		Files    []string `json:"fileIds"`
		Workflow string   `json:"userWorkflowId"`
		Slots    []slot   `json:"slotAnswers"`
	}{[]string{}, workflow, answers})
}
