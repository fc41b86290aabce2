// Command protogen writes the Go code of a .proto file beside it, as protoc would with protoc-gen-go and protoc-gen-go-grpc. protoc itself is a
// C++ program that Go cannot fetch; this one compiles the file with protocompile, and runs the two plugins at the versions of this module.
//
//	go -C tools run ./protogen path/from/the/root.proto...
//
// It is run by go generate. Its output depends on nothing but the file and this module's versions.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	for _, file := range os.Args[1:] {
		if err := generate("..", file); err != nil {
			fmt.Fprintln(os.Stderr, "protogen:", err)
			os.Exit(1)
		}
	}
}

// generate writes what the plugins make of a file, whose path is relative to root.
func generate(root, file string) error {
	c := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{root}},
		SourceInfoMode: protocompile.SourceInfoStandard, // comments become the code's comments
	}
	files, err := c.Compile(context.Background(), file)
	if err != nil {
		return err
	}
	if n := files[0].Imports().Len(); n > 0 {
		return fmt.Errorf("%s has %d imports, which are not supported", file, n)
	}
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate:        []string{file},
		Parameter:             proto.String("paths=source_relative"),
		ProtoFile:             []*descriptorpb.FileDescriptorProto{protoutil.ProtoFromFileDescriptor(files[0])},
		SourceFileDescriptors: []*descriptorpb.FileDescriptorProto{protoutil.ProtoFromFileDescriptor(files[0])},
	})
	if err != nil {
		return err
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := run(plugin, request, root); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// run has a plugin of this module answer a request, and writes the files of the answer.
func run(plugin string, request []byte, root string) error {
	cmd := exec.Command("go", "tool", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var answer pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return fmt.Errorf("%s", *answer.Error)
	}
	for _, f := range answer.File {
		if err := os.WriteFile(filepath.Join(root, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
