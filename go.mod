module github.com/teralog/teralog

go 1.26.0

require (
	github.com/klauspost/compress v1.20.4
	github.com/valyala/bytebufferpool v1.0.0
	golang.org/x/sys v0.50.0
)
