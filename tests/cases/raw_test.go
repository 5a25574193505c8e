package cases

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// request is what goes over the wire, byte for byte, and how. The zero value of each option is what a good client does.
type request struct {
	File  string // testdata/FILE.http; @@KEY@@ and @@HOST@@ are filled in
	Bytes string // instead of a file
	Key   string // default rig.Key
	ID    string // adds the one line X-Test-Id, by which the fake's records are found
	Body  []byte // further bytes, after those of the file

	Wait100         bool          // send the head, wait for 100 or a final status, then the rest
	Pace            int           // bytes a second; 0 as fast as they go
	NoRead          time.Duration // read nothing for so long
	CloseAfter      time.Duration // close so long after the start
	CloseAfterLines int           // close after so many lines of body
	RST             bool          // close with a reset
	Timeout         time.Duration // of the whole; default 30 s
}

// How a message ended.
const (
	complete  = "complete"
	atClose   = "complete, by the end of the connection"
	truncated = "truncated"
	reset     = "reset"
	byTest    = "closed by the test"
	timedOut  = "timed out"
)

// reply is what came back.
type reply struct {
	Start   time.Time
	Sent    int           // bytes
	Interim []string      // status lines of 1xx answers
	First   time.Duration // until the first byte of the final or interim answer
	Proto   string
	Status  int
	Lines   []string // header lines as they came
	Header  http.Header
	Body    string
	At      []time.Duration // when each line of the body was complete
	ReadAt  []time.Duration // arrivals on the socket
	Ended   string
	Closed  time.Time // when the test closed
	Total   time.Duration
	rest    *bufio.Reader // what follows on the connection
	conn    *net.TCPConn
}

func (r *reply) sha256() string {
	sum := sha256.Sum256([]byte(r.Body))
	return hex.EncodeToString(sum[:])
}

// tap notes when bytes arrive.
type tap struct {
	net.Conn
	start time.Time
	at    []time.Duration
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.at = append(t.at, time.Since(t.start))
	}
	return n, err
}

// bytes returns what is sent.
func (q request) bytes(t testing.TB, host string) []byte {
	t.Helper()
	raw := []byte(q.Bytes)
	if q.File != "" {
		var err error
		if raw, err = os.ReadFile(filepath.Join("testdata", q.File+".http")); err != nil {
			t.Fatal(err)
		}
	}
	key := q.Key
	if key == "" {
		key = rig.Key
	}
	raw = bytes.ReplaceAll(bytes.ReplaceAll(raw, []byte("@@KEY@@"), []byte(key)), []byte("@@HOST@@"), []byte(host))
	if q.ID != "" {
		raw = bytes.Replace(raw, []byte("\r\n"), []byte("\r\nX-Test-Id: "+q.ID+"\r\n"), 1)
	}
	return raw
}

// body returns the body of a file.
func body(t testing.TB, file string) string {
	t.Helper()
	_, b, _ := bytes.Cut(request{File: file}.bytes(t, ""), []byte("\r\n\r\n"))
	return string(b)
}

// to sends the request to addr and reads the answer until its end, or as far as the options say. The connection is closed then.
func (q request) to(t testing.TB, addr string) *reply {
	t.Helper()
	r := q.open(t, addr)
	r.close(q.RST)
	return r
}

// open is to without the close.
func (q request) open(t testing.TB, addr string) *reply {
	t.Helper()
	if q.Timeout == 0 {
		q.Timeout = 30 * time.Second
	}
	start := time.Now()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	in := &tap{Conn: c, start: start}
	r := &reply{Start: start, conn: c.(*net.TCPConn), rest: bufio.NewReaderSize(in, 256<<10)}
	end := start.Add(q.Timeout)
	if q.CloseAfter > 0 {
		end = start.Add(q.CloseAfter)
	}
	c.SetReadDeadline(end)
	raw := q.bytes(t, addr)
	err = q.upload(r, raw)
	time.Sleep(q.NoRead)
	if err == nil || r.Status == 0 { // also after a failed write: the answer may have come before all was sent
		err = r.read(q, bytes.HasPrefix(raw, []byte("HEAD ")), start)
	}
	r.ReadAt, r.Total = in.at, time.Since(start)
	if len(in.at) > 0 {
		r.First = in.at[0]
	}
	switch {
	case errors.Is(err, errEnough), errors.Is(err, os.ErrDeadlineExceeded) && q.CloseAfter > 0:
		r.Ended = byTest
	case errors.Is(err, os.ErrDeadlineExceeded):
		r.Ended = timedOut
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		r.Ended = reset
	case err != nil:
		r.Ended = truncated + ": " + err.Error()
	}
	return r
}

var errEnough = errors.New("enough lines")

func (r *reply) close(rst bool) {
	if rst {
		_ = r.conn.SetLinger(0)
	}
	r.Closed = time.Now()
	r.conn.Close()
}

// upload sends the bytes and the further body, with what Wait100 and Pace ask for.
func (q request) upload(r *reply, raw []byte) error {
	if q.Wait100 {
		i := bytes.Index(raw, []byte("\r\n\r\n")) + 4
		n, err := r.conn.Write(raw[:i])
		r.Sent += n
		if err != nil {
			return err
		}
		if b, err := r.rest.Peek(12); err != nil || string(b) != "HTTP/1.1 100" {
			return err // a final answer: the body stays here
		}
		raw = raw[i:]
	}
	for _, part := range [][]byte{raw, q.Body} {
		for len(part) > 0 {
			step := len(part)
			if q.Pace > 0 {
				step = min(step, max(1, q.Pace/10))
			}
			n, err := r.conn.Write(part[:step])
			r.Sent += n
			if err != nil {
				return err
			}
			part = part[n:]
			if q.Pace > 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}
	return nil
}

// read reads one answer.
func (r *reply) read(q request, headless bool, start time.Time) error {
	for {
		line, err := r.line()
		if err != nil {
			return err
		}
		proto, rest, _ := strings.Cut(line, " ")
		status, _ := strconv.Atoi(rest[:min(3, len(rest))])
		r.Lines, r.Header = nil, http.Header{}
		for {
			h, err := r.line()
			if err != nil {
				return err
			}
			if h == "" {
				break
			}
			name, value, _ := strings.Cut(h, ":")
			r.Lines = append(r.Lines, h)
			r.Header.Add(name, strings.TrimSpace(value))
		}
		if status/100 == 1 && status != 101 {
			r.Interim = append(r.Interim, line)
			continue
		}
		r.Proto, r.Status = proto, status
		break
	}
	r.Ended = complete
	from, length := io.Reader(r.rest), int64(-1)
	switch {
	case headless || r.Status == 204 || r.Status == 304 || r.Status == 101:
		return nil
	case strings.EqualFold(r.Header.Get("Transfer-Encoding"), "chunked"):
		from = httputil.NewChunkedReader(r.rest)
	case r.Header.Get("Content-Length") != "":
		length, _ = strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64)
		from = io.LimitReader(r.rest, length)
	default:
		r.Ended = atClose
	}
	var all bytes.Buffer
	defer func() { r.Body = all.String() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		all.Write(buf[:n])
		for range bytes.Count(buf[:n], []byte("\n")) {
			r.At = append(r.At, time.Since(start))
		}
		switch {
		case q.CloseAfterLines > 0 && len(r.At) >= q.CloseAfterLines:
			return errEnough
		case err == io.EOF && length >= 0 && int64(all.Len()) < length:
			return fmt.Errorf("%d of %d bytes", all.Len(), length)
		case err == io.EOF && r.Header.Get("Transfer-Encoding") != "":
			return r.trailer()
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// trailer reads to the end of a chunked message.
func (r *reply) trailer() error {
	for {
		if h, err := r.line(); err != nil || h == "" {
			return err
		}
	}
}

func (r *reply) line() (string, error) {
	s, err := r.rest.ReadString('\n')
	return strings.TrimRight(s, "\r\n"), err
}
