module stepwire.example/level0

go 1.19

require github.com/pebbe/zmq4 v1.4.0
