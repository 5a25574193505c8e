package cases

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestA22_HTTP10(t *testing.T) {
	t.Parallel()
	f := surface()
	r := f.send(t, "A22_http10")
	if r.Status != 200 || r.Header.Get("Transfer-Encoding") != "" || (r.Ended != atClose && r.Ended != complete) {
		t.Fatalf("%s %d %v %s", r.Proto, r.Status, r.Lines, r.Ended)
	}
	if regexp.MustCompile(`(?m)^[0-9a-f]+\r?$`).MatchString(r.Body) || !strings.HasSuffix(r.Body, "}\n") {
		t.Errorf("%q", r.Body)
	}
	// It streams all the same.
	slow := chat("t-tick", `,"t_n":5,"t_ms":200`)
	ten := "POST /api/chat HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer @@KEY@@\r\nContent-Length: " + itoa(len(slow)) + "\r\n\r\n" + slow
	if r := (request{Bytes: ten}).to(t, site(f.Gateway)); len(r.At) != 6 || r.At[4]-r.At[0] < 500*time.Millisecond {
		t.Errorf("lines at %v", r.At)
	}
	if r := f.send(t, "A22_http10_get"); r.Status != 200 || r.Header.Get("Transfer-Encoding") != "" || !strings.HasPrefix(r.Body, `{"models":[`) {
		t.Errorf("%d %v %q", r.Status, r.Lines, r.Body)
	}
}

func TestA23_Expect(t *testing.T) {
	t.Parallel()
	f := surface()
	r := request{File: "A23_expect", Wait100: true, ID: t.Name()}.to(t, site(f.Gateway))
	if r.Status != 200 || len(r.Interim) != 1 || !strings.Contains(r.Interim[0], "100") || r.First > time.Second {
		t.Errorf("%d %v after %v: %s", r.Status, r.Interim, r.First, r.Body)
	}
	if rec := f.record(t); int(rec.Len) != len(body(t, "A23_expect")) {
		t.Errorf("the provider got %d bytes", rec.Len)
	}
	bad := request{File: "A23_expect_badkey", Wait100: true}
	r = bad.to(t, site(f.Gateway))
	if r.Status != 401 || len(r.Interim) != 0 || r.First > time.Second || r.Sent >= len(body(t, "A23_expect_badkey")) {
		t.Errorf("a bad key: %d %v after %v, %d bytes sent", r.Status, r.Interim, r.First, r.Sent)
	}
}

func TestA24_Smuggling(t *testing.T) {
	t.Parallel()
	f := surface()
	for _, file := range []string{"A24_cl_and_te", "A24_two_lengths", "A24_te_tab", "A24_te_space_colon", "A24_te_xchunked"} {
		id := t.Name() + file
		r := request{File: file, ID: id, Timeout: 2 * time.Second}.open(t, site(f.Gateway))
		switch recs := f.records(id); {
		case r.Status == 200:
			if len(recs) != 1 || recs[0].Path != "/api/show" || len(recs[0].Header("Content-Length"))+len(recs[0].Header("Transfer-Encoding")) != 1 {
				t.Errorf("%s: %+v", file, recs)
			}
			if err := r.read(request{}, false, time.Now()); err == nil && r.Status != 401 && r.Status != 400 {
				t.Errorf("%s: the hidden request got %d %s", file, r.Status, r.Body)
			}
		case (r.Status != 400 && r.Status != 501) || len(recs) != 0:
			t.Errorf("%s: %d %s, %d records", file, r.Status, r.Body, len(recs))
		}
		r.close(false)
	}
	for _, rec := range f.fake.Log() {
		if rec.Method == "DELETE" {
			t.Errorf("a hidden request reached the provider: %+v", rec)
		}
	}
}
