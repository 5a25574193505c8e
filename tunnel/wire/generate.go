package wire

// protoc comes from Debian's protobuf-compiler, the generator from the module's tool line.
//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative wire.proto"
