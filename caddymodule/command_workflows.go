package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf16"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/fairway-edge/fairway/internal/edge"
)

// workflowsCommand is `caddy fairway workflows`.
func workflowsCommand() *cobra.Command {
	root := group(&cobra.Command{Use: "workflows", Short: "Workflows of one's own in the cloud of a profile with adapter goals", Long: `
Asks the cloud, through a node and with the key that the profile's slot holds:

  list [--visibility private|public|archived] [--limit N] [--cursor C]
  get ID
  runs ID [--limit N]
  export ID
  contract ID [--model-binding NAME] [--locale L]
  delete ID --yes

With --json each prints what the cloud answered, whole, and by which node and run.`})
	root.PersistentFlags().String("profile", "", "The profile, where several have the adapter goals")
	list := workflowCommand(edge.ListWorkflows, "list", "List them, the newest first", workflowTable)
	list.Flags().String("visibility", "", "private, public or archived")
	list.Flags().String("limit", "", "How many at most, up to 100 (default 20)")
	list.Flags().String("cursor", "", "Go on where a list before ended")
	runs := workflowCommand(edge.WorkflowRuns, "runs ID", "List the last runs of one", workflowRunTable)
	runs.Flags().String("limit", "", "How many at most, up to 50 (default 5)")
	contract := workflowCommand(edge.WorkflowContract, "contract ID", "Print the contract of one, for `fairway-node edge run`", printDocument)
	contract.Flags().String("model-binding", "", "The model that the contract is to name")
	contract.Flags().String("locale", "", "The language of its words")
	remove := workflowCommand(edge.DeleteWorkflow, "delete ID --yes", "Delete one", deletedTable)
	remove.Flags().Bool("yes", false, "Do it: nothing brings it back")
	root.AddCommand(list, workflowCommand(edge.GetWorkflow, "get ID", "Show one; all of it with --json", workflowTable), runs,
		workflowCommand(edge.ExportWorkflow, "export ID", "Print the document that one is exported as", printDocument), contract, remove)
	return root
}

// workflowCommand is the command of one call.
func workflowCommand(what edge.WorkflowCall, use, short string, show func(io.Writer, []WorkflowView)) *cobra.Command {
	args := 0
	if what != edge.ListWorkflows {
		args = 1
	}
	return command(use, short, args, func(cmd *cobra.Command, args []string) (int, error) {
		method, uri, err := workflowRoute(cmd, what, args)
		if err != nil {
			return exitUsage, err
		}
		raw, err := call(cmd, method, uri, nil)
		if err != nil {
			return exitFailed, err
		}
		var rows []WorkflowView
		if err := json.Unmarshal(raw, &rows); err != nil || len(rows) != 1 {
			return exitFailed, errors.Join(errors.New("reading the admin API's answer"), err)
		}
		code, err := show1(cmd, raw, show)
		_, _ = fmt.Fprint(cmd.ErrOrStderr(), rows[0].notes())
		return code, err
	})
}

var errNotYes = errors.New("delete takes a workflow away for good: say --yes")

// workflowRoute is the admin route of a call, whose arguments are checked before anyone
// is asked.
func workflowRoute(cmd *cobra.Command, what edge.WorkflowCall, args []string) (method, uri string, err error) {
	f := caddycmd.Flags{FlagSet: cmd.Flags()}
	params, query := map[string]string{}, url.Values{}
	for _, name := range workflowParams {
		flag := cmd.Flags().Lookup(strings.ReplaceAll(name, "_", "-"))
		if flag != nil && flag.Changed {
			params[name] = flag.Value.String()
			query.Set(name, flag.Value.String())
		}
	}
	id := ""
	if len(args) > 0 {
		id = args[0]
	}
	if _, _, err := edge.WorkflowRequest(what, id, params); err != nil {
		return "", "", err
	}
	if p := f.String("profile"); p != "" {
		query.Set("profile", p)
	}
	method, uri = http.MethodGet, "/fairway/workflows"
	if id != "" {
		uri += "/" + id // letters, digits, - and _
	}
	switch what {
	case edge.DeleteWorkflow:
		if method = http.MethodDelete; !f.Bool("yes") {
			return "", "", errNotYes
		}
	case edge.WorkflowRuns, edge.ExportWorkflow, edge.WorkflowContract:
		uri += "/" + string(what)
	}
	if len(query) > 0 {
		uri += "?" + query.Encode()
	}
	return method, uri, nil
}

// notes are what a person should know besides.
func (v *WorkflowView) notes() string {
	var list struct{ Cursor string }
	switch {
	case v.Version != "":
		return fmt.Sprintf("The document's schema version is %s.\n", plain(v.Version))
	case v.Call == string(edge.ListWorkflows) && json.Unmarshal(v.Answer, &list) == nil && list.Cursor != "":
		return fmt.Sprintf("There are more: --cursor %s\n", plain(list.Cursor))
	}
	return ""
}

// record is one object of the cloud's, of which nothing is certain.
type record map[string]any

// cell is one of its members for a table.
func (r record) cell(name string) string {
	switch v := r[name].(type) {
	case string:
		return v
	case float64, bool:
		return fmt.Sprint(v)
	}
	return ""
}

// records are the objects of a list under items, or the one that the answer is.
func (v *WorkflowView) records() []record {
	var list struct{ Items []record }
	if json.Unmarshal(v.Answer, &list) == nil && list.Items != nil {
		return list.Items
	}
	var one record
	if v.Call != string(edge.GetWorkflow) || json.Unmarshal(v.Answer, &one) != nil {
		return nil
	}
	return []record{one}
}

func workflowTable(w io.Writer, rows []WorkflowView) {
	t := newTable(w, "WORKFLOW", "NAME", "VISIBILITY", "UPDATED", "DESCRIPTION")
	for _, v := range rows {
		for _, r := range v.records() {
			about := r.cell("descriptionPreview")
			if about == "" {
				about = r.cell("description")
			}
			t.row(r.cell("workflowId"), short(r.cell("name")), r.cell("visibility"), r.cell("updatedAt"), short(about))
		}
	}
	t.end("no workflows")
}

func workflowRunTable(w io.Writer, rows []WorkflowView) {
	t := newTable(w, "JOB", "STATUS", "PROGRESS", "STARTED", "COMPLETED", "ERROR")
	for _, v := range rows {
		for _, r := range v.records() {
			t.row(r.cell("jobSpecId"), r.cell("status"), r.cell("progress"), r.cell("startedAt"), r.cell("completedAt"), r.cell("errorCode"))
		}
	}
	t.end("no runs")
}

func deletedTable(w io.Writer, rows []WorkflowView) {
	t := newTable(w, "DELETED", "PROFILE", "NODE")
	for _, v := range rows {
		t.row(v.Workflow, v.Profile, v.Node)
	}
	t.end("")
}

// printDocument prints the answer alone, to be kept in a file. What a terminal would obey
// is written as JSON escapes it, which changes nothing for who reads JSON.
func printDocument(w io.Writer, rows []WorkflowView) {
	for _, v := range rows {
		var out bytes.Buffer
		if json.Indent(&out, v.Answer, "", "  ") != nil {
			continue // the admin API's answer was JSON
		}
		var safe strings.Builder
		for _, c := range out.String() {
			switch {
			case c == '\n' || unicode.IsPrint(c):
				safe.WriteRune(c)
			case c > 0xffff:
				a, b := utf16.EncodeRune(c)
				_, _ = fmt.Fprintf(&safe, `\u%04x\u%04x`, a, b)
			default:
				_, _ = fmt.Fprintf(&safe, `\u%04x`, c)
			}
		}
		_, _ = fmt.Fprintln(w, safe.String())
	}
}
