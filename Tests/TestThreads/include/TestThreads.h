// How many threads run the tests.
//
// Each test that waits, for a socket or a process, holds one of the threads on which Swift runs tasks, and there are as
// many of these as processors. On two processors most of the run would be spent waiting. So Dispatch is told of four
// times as many.

#pragma once
