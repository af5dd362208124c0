// Jansson, as installed on the system: the reader of JSON that people and other programs wrote.
#pragma once
#include <jansson.h>
