// How many threads run the tests.
//
// Each test that waits for a socket or a process holds one of the threads on which Swift runs tasks. Swift has as many
// of these as processors, so on two processors the run would spend most of its time waiting. This module reports four
// times as many processors to Dispatch.

#pragma once
