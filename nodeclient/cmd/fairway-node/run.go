package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/nodeclient"
	"github.com/fairway-edge/fairway/tunnel"
)

// runNode is the command run.
func runNode(env *environment, args []string) error {
	s, err := read(env, "run", args)
	if err != nil {
		return err
	}
	noCore()
	log, err := newLog(env, s)
	if err != nil {
		return err
	}
	defer zap.RedirectStdLog(log)() // quic-go's word about socket buffers
	cfg, err := s.nodeConfig(env, log)
	if err != nil {
		return err
	}
	node, err := nodeclient.New(cfg)
	if err != nil {
		return usagef("%v", err)
	}
	ctx, stop := untilSignal(log, node.Close)
	defer stop()
	log.Info("starting", zap.String("version", version), zap.Strings("gateways", s.gateways), zap.String("state_dir", s.stateDir))
	if err := node.Run(ctx); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// nodeConfig checks everything that needs no network.
func (s *settings) nodeConfig(env *environment, log *zap.Logger) (cfg nodeclient.Config, err error) {
	if len(s.gateways) == 0 {
		return cfg, usagef("no gateway: give --gateway HOST:PORT, or FAIRWAY_GATEWAY")
	}
	for _, t := range s.issuers {
		if raw, err := base64.RawURLEncoding.Strict().DecodeString(t); err != nil || len(raw) != sha256.Size {
			return cfg, usagef("lease-issuer %q: want the RFC 7638 thumbprint of an issuer key, 43 characters", t)
		}
	}
	if s.grace < 0 {
		return cfg, usagef("grace %s: want 0 or more", s.grace)
	}
	cfg = nodeclient.Config{
		Gateways: s.gateways, StateDir: s.stateDir, Software: version, Demo: nodeclient.DemoMode(s.demo), Allow: s.allow, LeaseIssuers: s.issuers, Grace: s.grace, Log: log,
	}
	if s.grace == 0 {
		cfg.Grace = -1
	}
	if cfg.Gates, err = s.gates(); err != nil {
		return cfg, err
	}
	if cfg.Labels, err = nodeclient.Labels(s.labels); err != nil {
		return cfg, usagef("%v", err)
	}
	if cfg.Targets, err = nodeclient.Targets(s.ollama, s.targets, s.credits, env.getenv); err != nil {
		return cfg, usagef("%v", err)
	}
	if len(cfg.Targets) == 0 && (s.demo == "off" || s.demo == "") {
		return cfg, usagef("no target: --ollama is off, and there is no --target and no --demo")
	}
	if err := cfg.Check(); err != nil {
		return cfg, usagef("%v", err)
	}
	id, err := nodeclient.NewStateIdentity(s.stateDir, s.token, s.gateways, log)
	if err != nil {
		return cfg, joinError(s, err)
	}
	cfg.Identity = id
	return cfg, nil
}

// joinError says what to do about a missing or wrong identity.
func joinError(s *settings, err error) error {
	switch {
	case errors.Is(err, nodeclient.ErrNoIdentity):
		return usagef("this machine has not joined a fleet: %s holds no identity.\nGet a token at the gateway, `caddy fairway token --node NAME`, and start with it: "+
			"FAIRWAY_TOKEN=... fairway-node run --gateway HOST:PORT", s.stateDir)
	case errors.Is(err, nodeclient.ErrOtherNode):
		return usagef("%v.\nLeave the token away to run as before, or give a --state-dir of its own to the other node", err)
	case errors.Is(err, nodeclient.ErrOtherFleet):
		return usagef("%v.\nIf the gateway's storage is new, move that directory away and join again with the token", err)
	case errors.Is(err, pki.ErrTokenInvalid):
		return usagef("%v (was it copied whole?)", err)
	}
	return err
}

// enroll is the command enroll.
func enroll(env *environment, args []string) error {
	s, err := read(env, "enroll", args)
	if err != nil {
		return err
	}
	log, err := newLog(env, s)
	if err != nil {
		return err
	}
	defer zap.RedirectStdLog(log)()
	switch {
	case len(s.gateways) == 0:
		return usagef("no gateway: give --gateway HOST:PORT, or FAIRWAY_GATEWAY")
	case s.token == "":
		return usagef("no token: give FAIRWAY_TOKEN, or --token; `caddy fairway token --node NAME` at the gateway prints one")
	}
	ctx, stop := untilSignal(log, func() {})
	defer stop()
	node, err := nodeclient.Join(ctx, s.stateDir, s.token, s.gateways, log)
	switch {
	case errors.Is(err, nodeclient.ErrJoined):
		_, err = fmt.Fprintf(env.stdout, "node %s has joined before; its identity in %s stays\n", node, s.stateDir)
		return err
	case err != nil:
		return joinError(s, err)
	}
	_, err = fmt.Fprintf(env.stdout, "joined as node %s; its identity is in %s\n", node, s.stateDir)
	return err
}

// untilSignal returns a context that the first SIGINT or SIGTERM ends. The second calls cut.
func untilSignal(log *zap.Logger, cut func()) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case sig := <-signals:
			log.Info("stopping: no new runs; a second signal cuts the open ones", zap.Stringer("signal", sig))
		case <-ctx.Done():
			return
		}
		cancel()
		if sig, ok := <-signals; ok {
			log.Warn("cutting open runs", zap.Stringer("signal", sig))
			cut()
		}
	}()
	return ctx, func() {
		cancel()
		signal.Stop(signals)
		close(signals)
	}
}

// newLog writes to standard error.
func newLog(env *environment, s *settings) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(s.logLevel)
	if err != nil || level < zapcore.DebugLevel || level > zapcore.ErrorLevel {
		return nil, usagef("log-level %q: want debug, info, warn or error", s.logLevel)
	}
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.TimeEncoderOfLayout(time.RFC3339Nano)
	var enc zapcore.Encoder
	switch s.logFormat {
	case "json":
		enc = zapcore.NewJSONEncoder(conf)
	case "console":
		conf.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z07:00")
		conf.EncodeLevel = zapcore.CapitalLevelEncoder
		enc = zapcore.NewConsoleEncoder(conf)
	default:
		return nil, usagef("log-format %q: want json or console", s.logFormat)
	}
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(env.stderr)), level)), nil
}

// advice says what a person can do about a refusal for good.
func advice(err error) string {
	var ee *tunnel.EnrollError
	if errors.As(err, &ee) {
		switch ee.Code {
		case "token_expired", "token_spent", "token_invalid":
			return "Get a new token at the gateway: caddy fairway token --node NAME"
		case "not_renewable":
			return "Join anew: move the state directory away, and get a token at the gateway: caddy fairway token --node NAME"
		}
	}
	var ve *pki.VerifyError
	if errors.As(err, &ve) {
		return "The gateway at that address is not of the fleet that the token is for."
	}
	var ce *tunnel.CloseError
	if !errors.As(err, &ce) {
		return ""
	}
	switch ce.Code {
	case tunnel.CloseDuplicateNode:
		return "Another process is connected as this node. Was the state directory copied with a disk image? Then move it away here, and join under another name."
	case tunnel.CloseRevoked, tunnel.CloseDisabled:
		return "The operator has revoked this node. At the gateway: caddy fairway revoke --node NAME --undo"
	case tunnel.CloseVersion:
		return "This program and the gateway speak different protocol versions: update the older one."
	case tunnel.CloseIdentity, tunnel.CloseIdentityMismatch, tunnel.CloseBadNodeID:
		return "The gateway does not take this node's certificate. Does it belong to another fleet? Then join with a token of this one, in a --state-dir of its own."
	}
	return ""
}
