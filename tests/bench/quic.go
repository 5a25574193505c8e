package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/quic-go/quic-go"
)

// The bare tunnel: what a product on quic-go cannot be cheaper than by much. The node dials; the gateway is a reverse proxy whose
// connections are streams, and the node splices each to a TCP connection.

const bareALPN = "bare"

func quicGateway(httpAddr, udpAddr string) error {
	conf, err := bareTLS()
	if err != nil {
		return err
	}
	ln, err := quic.ListenAddr(udpAddr, conf, &quic.Config{MaxIdleTimeout: 15 * time.Second, KeepAlivePeriod: 5 * time.Second})
	if err != nil {
		return err
	}
	conn, err := ln.Accept(context.Background())
	if err != nil {
		return err
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "upstream"})
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{
		MaxIdleConnsPerHost: 1024, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			s, err := conn.OpenStreamSync(ctx)
			if err != nil {
				return nil, err
			}
			return &streamConn{s, conn}, nil
		},
	}
	return http.ListenAndServe(httpAddr, proxy) //nolint:gosec // a benchmark on loopback
}

// streamConn is a stream as a net.Conn.
type streamConn struct {
	*quic.Stream
	c *quic.Conn
}

func (s *streamConn) LocalAddr() net.Addr  { return s.c.LocalAddr() }
func (s *streamConn) RemoteAddr() net.Addr { return s.c.RemoteAddr() }
func (s *streamConn) Close() error {
	s.CancelRead(0)
	return s.Stream.Close()
}

func quicNode(udpAddr, upstream string) error {
	conn, err := quic.DialAddr(context.Background(), udpAddr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{bareALPN}}, //nolint:gosec // a benchmark on loopback
		&quic.Config{MaxIdleTimeout: 15 * time.Second, KeepAlivePeriod: 5 * time.Second, MaxIncomingStreams: 4096})
	if err != nil {
		return err
	}
	for {
		s, err := conn.AcceptStream(context.Background())
		if err != nil {
			return err
		}
		go splice(s, upstream)
	}
}

func splice(s *quic.Stream, upstream string) {
	c, err := net.Dial("tcp", upstream) //nolint:noctx // a benchmark on loopback
	if err != nil {
		s.CancelWrite(1)
		return
	}
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{c}, s, make([]byte, 32<<10))
		if err != nil && !errors.Is(err, io.EOF) {
			_ = c.Close()
		}
	}()
	_, _ = io.CopyBuffer(s, struct{ io.Reader }{c}, make([]byte, 32<<10))
	_ = s.Close()
	_ = c.Close()
}

func bareTLS() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{bareALPN}, MinVersion: tls.VersionTLS13}, nil
}
