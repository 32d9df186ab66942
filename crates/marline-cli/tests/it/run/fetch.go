package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	body, err := io.ReadAll(answer.Body)
	fmt.Println(answer.StatusCode, len(body))
	if err != nil {
		os.Exit(1)
	}
}
