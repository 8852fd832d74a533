// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/c_api/status.h"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <thread>

namespace narrowfloat::c_api {
namespace {

template <class Exception>
std::int32_t StatusOf() {
  return Guard([] { throw Exception("what it says"); });
}

TEST(StatusTest, EveryErrorTypeHasItsStatusAndText) {
  EXPECT_EQ(StatusOf<InvalidArgument>(), 2);
  EXPECT_STREQ(LastError(), "what it says");
  EXPECT_EQ(StatusOf<Unsupported>(), 3);
  EXPECT_STREQ(LastError(), "what it says");
  EXPECT_EQ(StatusOf<DeviceError>(), 4);
  EXPECT_STREQ(LastError(), "what it says");
  EXPECT_EQ(StatusOf<IoError>(), 4);
  EXPECT_STREQ(LastError(), "what it says");
}

TEST(StatusTest, WhatIsNotOursIsAFailureToo) {
  EXPECT_EQ(Guard([] { throw std::bad_alloc(); }), 4);
  EXPECT_STREQ(LastError(), "std::bad_alloc");
  EXPECT_EQ(Guard([] { throw 7; }), 4);
  EXPECT_STREQ(LastError(), "narrowfloat: an exception of unknown type");
}

TEST(StatusTest, SuccessClearsTheText) {
  StatusOf<IoError>();
  EXPECT_EQ(Guard([] {}), 0);
  EXPECT_STREQ(LastError(), "");
}

TEST(StatusTest, ALongTextIsCut) {
  const std::string text(10'000, 'x');
  SetLastError(text.c_str());
  EXPECT_EQ(std::string(LastError()), text.substr(0, 2047));
}

TEST(StatusTest, EveryThreadHasItsOwnText) {
  SetLastError("of this thread");
  std::string other = "not read";
  std::thread([&] { other = LastError(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_STREQ(LastError(), "of this thread");
}

}  // namespace
}  // namespace narrowfloat::c_api
