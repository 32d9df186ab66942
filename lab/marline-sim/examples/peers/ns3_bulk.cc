// The bulk transfer of `numbers cost` in ns-3, to compare CPU time: one TCP connection (CUBIC, SACK) over 100 Mbit/s
// with a round trip of 20 ms and a queue of 20 ms, between two hosts. Prints simulated seconds per wall second and
// microseconds per data packet.
#include <chrono>
#include <cstdio>
#include <cstring>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

using namespace ns3;

int main() {
    const double seconds = 20;
    const uint32_t segment = 1448;
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpCubic"));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(4 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(4 << 20));

    NodeContainer hosts;
    hosts.Create(2);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", StringValue("100Mbps"));
    link.SetChannelAttribute("Delay", StringValue("10ms"));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("167p"));
    NetDeviceContainer devices = link.Install(hosts);
    InternetStackHelper().Install(hosts);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4InterfaceContainer interfaces = addresses.Assign(devices);

    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 9));
    ApplicationContainer server = sink.Install(hosts.Get(1));
    server.Start(Seconds(0));
    BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(interfaces.GetAddress(1), 9));
    bulk.SetAttribute("SendSize", UintegerValue(65536));
    bulk.Install(hosts.Get(0)).Start(Seconds(0));

    const auto begun = std::chrono::steady_clock::now();
    Simulator::Stop(Seconds(seconds));
    Simulator::Run();
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
    const double bytes = double(DynamicCast<PacketSink>(server.Get(0))->GetTotalRx());
    std::printf("ns-3 1 x 100 Mbit/s, 10 ms: %.1f simulated s per wall s, %.2f us per data packet, %.1f Mbit/s\n",
                seconds / wall.count(), wall.count() * 1e6 / (bytes / segment), bytes * 8 / seconds / 1e6);
    Simulator::Destroy();
    return 0;
}
