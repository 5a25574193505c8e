package conformance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"testing"
	"time"
)

// message is an answer as it stood on the wire.
type message struct {
	proto   string
	status  int
	interim []int // 1xx before it
	lines   []string
	header  textproto.MIMEHeader
	chunks  []string // of a chunked body; one piece otherwise
	whole   bool     // the body ended as its framing says
}

func (m message) body() string { return strings.Join(m.chunks, "") }

// framings counts the ways in which the body's end is told.
func (m message) framings() int {
	return len(m.header.Values("Content-Length")) + len(m.header.Values("Transfer-Encoding"))
}

// wire sends raw bytes to a base URL and reads one answer. After names what is sent once a 100 has come.
func wire(t *testing.T, base, raw, after string) message {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(raw, " ")
	m, err := readMessage(bufio.NewReaderSize(c, 1<<20), method, func() { _, _ = io.WriteString(c, after) })
	if err != nil && m.status == 0 {
		t.Fatalf("%s: no answer to %q: %v", base, clip(raw), err)
	}
	return m
}

// wireHalf closes the sending side after the request. No answer at all is a message without a status.
func wireHalf(t *testing.T, base, raw string) message {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	m, _ := readMessage(bufio.NewReader(c), "POST", func() {})
	return m
}

func readMessage(r *bufio.Reader, method string, proceed func()) (m message, err error) {
	for {
		m.lines = nil
		line, err := r.ReadString('\n')
		if err != nil {
			return m, err
		}
		if _, err := fmt.Sscanf(line, "%s %d", &m.proto, &m.status); err != nil {
			return m, fmt.Errorf("%q: %w", line, err)
		}
		m.header = textproto.MIMEHeader{}
		for {
			h, err := r.ReadString('\n')
			if err != nil {
				return m, err
			}
			if h = strings.TrimRight(h, "\r\n"); h == "" {
				break
			}
			m.lines = append(m.lines, h)
			name, value, _ := strings.Cut(h, ":")
			m.header.Add(name, strings.TrimSpace(value))
		}
		if m.status >= 200 {
			break
		}
		m.interim = append(m.interim, m.status)
		proceed()
	}
	switch length := m.header.Get("Content-Length"); {
	case method == "HEAD" || m.status == 204 || m.status == 304:
		m.whole = true
	case strings.EqualFold(m.header.Get("Transfer-Encoding"), "chunked"):
		return m, m.readChunks(r)
	case length != "":
		n, err := strconv.Atoi(length)
		if err != nil {
			return m, err
		}
		b := make([]byte, n)
		n, err = io.ReadFull(r, b)
		m.chunks, m.whole = []string{string(b[:n])}, err == nil
		return m, err
	default:
		b, err := io.ReadAll(r)
		m.chunks, m.whole = []string{string(b)}, err == nil
		return m, err
	}
	return m, nil
}

func (m *message) readChunks(r *bufio.Reader) error {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(strings.TrimSpace(line), 16, 31)
		if err != nil {
			return err
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if n == 0 {
			m.whole = true // no trailers are declared anywhere here
			return nil
		}
		m.chunks = append(m.chunks, string(b[:n]))
	}
}

// rawPost is a request as a plain HTTP/1.1 client writes it.
func rawPost(path, body string, lines ...string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" + joined(lines) + "\r\n" + body
}

func joined(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l + "\r\n")
	}
	return b.String()
}
