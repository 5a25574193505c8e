package fakeollama

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// serveAdmin offers the admin functions:
//
//	GET /log                 the records
//	GET /stats               the gauges and counters
//	GET /reset               forgets both
//	GET /set?…               models=a,b  tags_delay=SECONDS  busy=0|1  down=0|1
//	                         fault=KIND or none, fault_path, fault_times, fault_to
func (s *Server) serveAdmin(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listening for admin on %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/log", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Log()) })
	mux.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Stats()) })
	mux.HandleFunc("/reset", func(w http.ResponseWriter, _ *http.Request) { s.Reset(); writeJSON(w, s.Stats()) })
	mux.HandleFunc("/set", func(w http.ResponseWriter, r *http.Request) {
		if err := s.set(r.URL.Query()); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, s.Stats())
	})
	s.admin = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	s.wg.Go(func() { s.admin.Serve(ln) })
	return nil
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.Encode(v)
}

func (s *Server) set(q url.Values) error {
	if q.Has("models") {
		s.SetModels(strings.FieldsFunc(q.Get("models"), func(r rune) bool { return r == ',' })...)
	}
	if q.Has("busy") {
		s.SetBusy(q.Get("busy") != "0")
	}
	if q.Has("tags_delay") {
		sec, err := strconv.ParseFloat(q.Get("tags_delay"), 64)
		if err != nil {
			return fmt.Errorf("tags_delay: %w", err)
		}
		s.SetTagsDelay(time.Duration(sec * float64(time.Second)))
	}
	if err := s.setFault(q); err != nil {
		return err
	}
	switch {
	case !q.Has("down"):
		return nil
	case q.Get("down") != "0":
		s.Down()
		return nil
	}
	return s.Up()
}

func (s *Server) setFault(q url.Values) error {
	switch kind := q.Get("fault"); kind {
	case "":
		return nil
	case "none":
		s.ClearFaults()
		return nil
	default:
		times, err := strconv.Atoi(q.Get("fault_times"))
		if err != nil && q.Has("fault_times") {
			return fmt.Errorf("fault_times: %w", err)
		}
		return s.SetFault(Fault{Kind: kind, Path: q.Get("fault_path"), Times: times, To: q.Get("fault_to")})
	}
}
