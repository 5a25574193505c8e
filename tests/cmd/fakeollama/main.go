// Command fakeollama runs the tests' stand-in for Ollama as a process of its
// own. Its admin functions listen on 127.0.0.1, port+1000. See package
// fakeollama.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fakeollama:", err)
		os.Exit(1)
	}
}

func run() error {
	var o fakeollama.Options
	bind := flag.String("bind", "127.0.0.1", "address to listen on")
	port := flag.Int("port", 11434, "port; the admin functions are on port+1000")
	models := flag.String("models", "", "comma-separated names (default: one of each behaviour)")
	idle := flag.Int("idle-close-ms", -1, "close connections idle for so long; below 0 never")
	flag.BoolVar(&o.AnyHost, "any-host", false, "no Host check")
	flag.StringVar(&o.Digest, "digest", "", "digest of every model")
	flag.StringVar(&o.Version, "version", "", "answer of /api/version")
	flag.IntVar(&o.Parallel, "parallel", 0, "inferences at once per model; 0 unlimited")
	flag.IntVar(&o.MaxQueue, "max-queue", 0, "inferences waiting per model before a 503 (default 512)")
	flag.Parse()
	o.Addr = net.JoinHostPort(*bind, strconv.Itoa(*port))
	o.Admin = net.JoinHostPort("127.0.0.1", strconv.Itoa(*port+1000))
	if *models != "" {
		o.Models = strings.Split(*models, ",")
	}
	switch {
	case *idle > 0:
		o.IdleClose = time.Duration(*idle) * time.Millisecond
	case *idle == 0:
		o.IdleClose = -1
	}
	s, err := fakeollama.Listen(o)
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Printf("fake ollama on %s, admin on %s\n", s.Addr(), o.Admin)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	return nil
}
